// Command loadgen puts a bounded load on one server of durable objects, on this machine only, and prints one line of
// JSON a run: rates, latencies, and the CPU and memory of the server's process. The same code drives Holdfast and its
// peers through an adapter each, so that figures are ratios of one run on one machine.
//
//	loadgen -adapter holdfast -addr 127.0.0.1:8420 -pid PID -mode ack -c 64
//
// Modes: ack (durable acknowledgements), stream (tokens, paced or as fast as they come), idle (memory of open sockets).
// Every mode ends by itself: at most two minutes, two million messages, 20,000 connections.
package main
