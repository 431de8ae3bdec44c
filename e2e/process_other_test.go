//go:build e2e && !linux

package e2e_test

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }

// stopped cannot tell here whether the process stands still.
func stopped(int) error { return nil }
