//go:build unix

package main

import "syscall"

const sigterm = syscall.SIGTERM
