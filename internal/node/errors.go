package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"

	"github.com/holdfast-ai/holdfast/inference"
	"github.com/holdfast-ai/holdfast/inference/fetch"
	"github.com/holdfast-ai/holdfast/storage"
)

// Code names why a server did not start or go on, for scripts and documentation.
type Code string

// Codes of errors, with their exit statuses in ExitStatus.
const (
	CodeUsage        Code = "invalid_usage" // of the command line
	CodeConfig       Code = "invalid_config"
	CodeAddressInUse Code = "address_in_use"
	CodeAddress      Code = "address_unusable"
	CodeDataLocked   Code = "data_locked"
	CodeDataNewer    Code = "data_newer_format"
	CodeDataDamaged  Code = "data_damaged"
	CodeDataUnusable Code = "data_unusable" // read-only, full, or not a folder
	CodeModel        Code = "model_unavailable"
	CodeInternal     Code = "internal"
)

// Error is a coded failure of a server. Message says what was tried and why it failed; Hint says what to do.
type Error struct {
	Code    Code
	Message string
	Hint    string
	Err     error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	if e.Message == "" {
		return e.Err.Error()
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// ExitStatus is that of a process that ends with this error. docs/OPERATIONS.md lists them.
func (e *Error) ExitStatus() int {
	switch e.Code {
	case CodeUsage, CodeConfig:
		return 2
	case CodeAddressInUse, CodeAddress:
		return 3
	case CodeDataLocked:
		return 4
	case CodeDataNewer:
		return 5
	case CodeDataDamaged, CodeDataUnusable:
		return 6
	case CodeModel:
		return 7
	}
	return 1
}

// listenError explains why an address cannot be listened on.
func listenError(what, addr string, err error) error {
	e := &Error{Code: CodeAddress, Message: fmt.Sprintf("listen for %s on %s", what, addr), Err: err}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		e.Code, e.Hint = CodeAddressInUse, fmt.Sprintf("another program, maybe another holdfast, has this port; stop it or choose another with --%s", flagOf(what))
	case errors.Is(err, syscall.EACCES):
		e.Hint = "ports below 1024 need privileges; choose a higher one"
	default:
		e.Hint = "give an address of this machine, such as 127.0.0.1:8420"
	}
	var op *net.OpError
	if errors.As(err, &op) { // which says the address again
		e.Err = op.Err
	}
	return e
}

func flagOf(what string) string {
	if what == "admin" {
		return "admin"
	}
	return "listen"
}

// dataError explains why the data folder cannot be used.
func dataError(dir string, err error) error {
	e := &Error{Code: CodeDataUnusable, Err: err}
	switch {
	case errors.Is(err, storage.ErrLocked):
		e.Code, e.Hint = CodeDataLocked, "a data folder belongs to one server at a time; stop the other one or choose another folder with --data"
	case errors.Is(err, storage.ErrNewerFormat):
		e.Code, e.Hint = CodeDataNewer, "nothing was changed; start the release that wrote the folder, or a later one"
	case errors.Is(err, storage.ErrCorrupt):
		e.Code, e.Hint = CodeDataDamaged, "nothing was changed; keep a copy of the folder before you try anything"
	case errors.Is(err, syscall.ENOTDIR):
		e.Hint = fmt.Sprintf("%s, or something above it, is a file; choose another folder with --data", dir)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, storage.ErrReadOnly):
		e.Hint = "the folder must be writable; change its owner or choose another with --data"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		e.Hint = "the disk is full; make room or choose a folder on another disk with --data"
	default:
		e.Hint = "choose another folder with --data, or look at the log above"
	}
	return e
}

// ModelError explains why a model cannot be had. Errors of an ended context are returned as they are.
func ModelError(err error) error {
	var pull *fetch.Error
	switch {
	case err == nil, errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &pull):
		return &Error{Code: CodeModel, Err: err, Hint: pull.Hint()}
	case errors.Is(err, inference.ErrModelNotFound):
		return &Error{Code: CodeModel, Err: err, Hint: "`holdfast model list` shows the models that there are"}
	case errors.Is(err, inference.ErrModelUnavailable):
		return &Error{Code: CodeModel, Err: err, Hint: "`holdfast model pull` fetches what is missing or damaged"}
	}
	return &Error{Code: CodeInternal, Err: err}
}
