// Package cli is the command line: one file a command. It is the one package that reads flags, files, the environment
// and the terminal, and that decides how a failure is told.
//
// The central function is Run, which a main calls with what the process was given:
//
//	os.Exit(cli.Run(cli.Program{Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
//
// A command is made by a function of its own and returns its errors; Run alone prints them, with their code and hint,
// and turns them into exit statuses, which docs/OPERATIONS.md lists.
package cli
