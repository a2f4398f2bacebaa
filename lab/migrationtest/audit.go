package migrationtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
)

// auditPolicy writes down every change, and the marks. Reviews change nothing,
// although they are created.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, nonResourceURLs: [/version]}
- {level: None, verbs: [get, list, watch]}
- {level: None, resources: [{group: authentication.k8s.io}, {group: authorization.k8s.io}]}
- {level: Metadata}
`

const markLimit = 30 * time.Second

// Mark is a moment of an API server: see [API.Mark].
type Mark struct {
	offset int64
}

// Write is one change somebody asked an API server for, as the server wrote it
// down. Dry runs are no changes.
type Write struct {
	Time time.Time
	// User is the account, UserAgent what its program calls itself.
	User, UserAgent string
	// Verb is create, update, patch, delete or deletecollection.
	Verb string
	// Resource has the group, for example machines.cluster.x-k8s.io or pods, and
	// the subresource, if there was one: pods/status.
	Resource        string
	Namespace, Name string
	// Code is the HTTP status: below 300 it was done.
	Code int
}

// Object names what was written.
func (w Write) Object() string { return w.Resource + " " + strings.Trim(w.Namespace+"/"+w.Name, "/") }

// String describes the write in one line.
func (w Write) String() string {
	return fmt.Sprintf("%s %s by %s: %d", w.Verb, w.Object(), w.User, w.Code)
}

// Writes are changes in the order in which they were answered.
type Writes []Write

// By keeps what an account wrote.
func (ws Writes) By(user string) Writes {
	return ws.keep(func(w Write) bool { return w.User == user })
}

// ByAgent keeps what programs wrote whose user agent begins with a text.
func (ws Writes) ByAgent(prefix string) Writes {
	return ws.keep(func(w Write) bool { return strings.HasPrefix(w.UserAgent, prefix) })
}

// In keeps what was written in a namespace, or to the namespace itself.
func (ws Writes) In(namespace string) Writes {
	return ws.keep(func(w Write) bool { return w.Namespace == namespace })
}

// To keeps what was written to a resource, subresources included.
func (ws Writes) To(resource string) Writes {
	return ws.keep(func(w Write) bool { return w.Resource == resource || strings.HasPrefix(w.Resource, resource+"/") })
}

// Done keeps what the server did, and leaves out what it refused.
func (ws Writes) Done() Writes {
	return ws.keep(func(w Write) bool { return w.Code < http.StatusMultipleChoices })
}

// Without leaves out a resource, for example leases.coordination.k8s.io.
func (ws Writes) Without(resource string) Writes {
	out := ws.To(resource)
	return ws.keep(func(w Write) bool { return !slices.Contains(out, w) })
}

// ByResource counts by verb and resource: "patch pods".
func (ws Writes) ByResource() map[string]int {
	count := map[string]int{}
	for _, w := range ws {
		count[w.Verb+" "+w.Resource]++
	}
	return count
}

func (ws Writes) keep(want func(Write) bool) Writes {
	return slices.DeleteFunc(slices.Clone(ws), func(w Write) bool { return !want(w) })
}

// String lists the writes, one per line.
func (ws Writes) String() string {
	lines := make([]string, len(ws))
	for i, w := range ws {
		lines[i] = w.String()
	}
	return strings.Join(lines, "\n")
}

// Mark returns this moment: what was answered before comes before it. The
// server has to be reachable.
func (a *API) Mark(tb testing.TB) Mark {
	tb.Helper()
	// The log is written after the answer, so its end is not the present. A
	// request of our own that shows up in it proves that what was answered
	// earlier has been written down, too.
	name := fmt.Sprintf("migrationtest-mark-%d-%d", os.Getpid(), a.marks.Add(1))
	config := a.Config()
	httpClient, err := rest.HTTPClientFor(config)
	require.NoError(tb, err)
	defer httpClient.CloseIdleConnections()
	// It comes after what is written by now; the log of all tests is long.
	written, err := os.Stat(a.audit)
	require.NoError(tb, err)
	request, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, a.URL()+"/version?"+url.Values{"mark": {name}}.Encode(), nil)
	require.NoError(tb, err)
	response, err := httpClient.Do(request)
	require.NoError(tb, err)
	require.NoError(tb, response.Body.Close())
	require.Equal(tb, http.StatusOK, response.StatusCode)

	log, err := os.Open(a.audit)
	require.NoError(tb, err)
	defer log.Close() //nolint:errcheck // Opened for reading.
	var offset int64
	err = until(tb.Context(), "the mark is in the audit log", markLimit, func() (bool, error) {
		raw, err := io.ReadAll(io.NewSectionReader(log, written.Size(), math.MaxInt64-written.Size()))
		at := bytes.Index(raw, []byte(name))
		if err != nil || at < 0 {
			return false, err
		}
		end := bytes.IndexByte(raw[at:], '\n')
		offset = written.Size() + int64(at+end+1)
		return end >= 0, nil
	})
	require.NoError(tb, err)
	return Mark{offset: offset}
}

// Writes returns what was changed since a mark.
func (a *API) Writes(tb testing.TB, since Mark) Writes {
	tb.Helper()
	return a.WritesBetween(tb, since, a.Mark(tb))
}

// WritesBetween returns what was changed between two marks.
func (a *API) WritesBetween(tb testing.TB, from, to Mark) Writes {
	tb.Helper()
	file, err := os.Open(a.audit)
	require.NoError(tb, err)
	defer file.Close() //nolint:errcheck // Opened for reading.
	raw, err := io.ReadAll(io.NewSectionReader(file, from.offset, to.offset-from.offset))
	require.NoError(tb, err)
	writes, err := parseAudit(raw)
	require.NoError(tb, err)
	return writes
}

// auditEvent is what we read of audit.k8s.io/v1 Event.
type auditEvent struct {
	Stage      string `json:"stage"`
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	UserAgent string `json:"userAgent"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		APIGroup    string `json:"apiGroup"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus *struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	Time time.Time `json:"stageTimestamp"`
}

func parseAudit(raw []byte) (Writes, error) {
	var writes Writes
	for line := range bytes.Lines(raw) {
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if e.ObjectRef == nil || e.ResponseStatus == nil || e.Stage == "ResponseStarted" {
			continue
		}
		uri, err := url.ParseRequestURI(e.RequestURI)
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		if uri.Query().Has("dryRun") {
			continue
		}
		w := Write{
			Time: e.Time, User: e.User.Username, UserAgent: e.UserAgent, Verb: e.Verb,
			Resource: e.ObjectRef.Resource, Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name, Code: e.ResponseStatus.Code,
		}
		if e.ObjectRef.APIGroup != "" {
			w.Resource += "." + e.ObjectRef.APIGroup
		}
		if e.ObjectRef.Subresource != "" {
			w.Resource += "/" + e.ObjectRef.Subresource
		}
		writes = append(writes, w)
	}
	return writes, nil
}
