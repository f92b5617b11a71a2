// Command holdfast serves durable chat sessions and the models behind them, and talks to such a server.
package main

import "github.com/holdfast-ai/holdfast"

func main() { holdfast.Main() }
