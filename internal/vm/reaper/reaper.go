package reaper

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signalled is what shells add to the number of a signal that ended a process.
const signalled = 128

// Run starts the program with arguments and returns its exit code when it ends. Everything else that ends meanwhile is collected, so
// that no zombies gather: the kernel gives orphans to the first process, and nobody else can do it.
func Run(program string, args, env []string) (int, error) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	child, err := syscall.ForkExec(program, append([]string{program}, args...), &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}) //nolint:gosec // its own program
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", program, err)
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				if number, ok := s.(syscall.Signal); ok {
					// It may have ended already; then there is nobody to tell.
					_ = syscall.Kill(child, number)
				}
			}
		}
	}()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("waiting for %s: %w", program, err)
		case pid == child && status.Exited():
			return status.ExitStatus(), nil
		case pid == child && status.Signaled():
			return signalled + int(status.Signal()), nil
		}
	}
}
