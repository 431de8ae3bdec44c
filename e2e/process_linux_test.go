//go:build e2e

package e2e_test

import "syscall"

// attributes make a process end with the test binary, should that be killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
