package browser

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Session is one Chromium with one tab. It remembers what the page did that nobody asked for.
type Session struct {
	// Context is the tab's, for chromedp.Run.
	Context context.Context //nolint:containedctx // chromedp carries the tab in its context.

	mu       sync.Mutex
	problems []string
	requests []string
}

// Start starts a Chromium with a fresh profile that talks to nobody on its own.
func Start(ctx context.Context, path, profile string) (*Session, context.CancelFunc, error) {
	flags := []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
		"disable-component-update", "disable-sync", "hide-scrollbars", "disable-dev-shm-usage",
	}
	options := make([]chromedp.ExecAllocatorOption, 0, 4+len(flags))
	options = append(options, chromedp.ExecPath(path), chromedp.UserDataDir(profile), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(2*time.Minute))
	for _, flag := range flags {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocator, stop := chromedp.NewExecAllocator(ctx, options...)
	tab, closeTab := chromedp.NewContext(allocator)
	s := &Session{Context: tab}
	cancel := func() {
		closeTab()
		stop()
	}
	err := chromedp.Listen(tab, s.listen)
	if err == nil {
		_, err = chromedp.Call(tab, network.Enable, network.EnableParams{})
	}
	if err == nil {
		_, err = chromedp.Call(tab, log.Enable, cdp.Empty{})
	}
	if err == nil {
		_, err = chromedp.Call(tab, runtime.Enable, cdp.Empty{})
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("starting %s: %w", path, err)
	}
	return s, cancel, nil
}

func (s *Session) listen(event any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		s.problems = append(s.problems, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == "error" || e.Type == "warning" {
			parts := make([]string, 0, len(e.Args))
			for _, arg := range e.Args {
				parts = append(parts, fmt.Sprint(string(arg.Value), arg.Description))
			}
			s.problems = append(s.problems, "console: "+strings.Join(parts, " "))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			s.problems = append(s.problems, "log: "+e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		if !strings.HasPrefix(e.Request.URL, "data:") && !strings.HasPrefix(e.Request.URL, "blob:") {
			s.requests = append(s.requests, e.Request.URL)
		}
	}
}

// Problems returns exceptions, console errors and policy violations since the last call.
func (s *Session) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.problems
	s.problems = nil
	return out
}

// Requests returns the addresses the page asked for since the last call.
func (s *Session) Requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.requests
	s.requests = nil
	return out
}
