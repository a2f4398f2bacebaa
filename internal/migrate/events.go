package migrate

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

const (
	eventsKey = "events.jsonl"
	// maxEvents bounds the log that is kept in the cluster; a ConfigMap takes a MiB. The oldest lines go first.
	maxEvents = 768 << 10
)

// Log is the event log of a migration. Every event goes to the file at once, and to the cluster with the next write of the journal. Events may come from several
// steps at the same time.
type Log struct {
	Clock clock.PassiveClock
	// File gets every line as it happens; nil for none.
	File io.Writer
	// Watch hears every event, for a view; nil for nobody.
	Watch func(history.Event)
	// Listener hears every event and has events of its own; nil for none.
	Listener Listener
	// Run, Cluster, By and Tool are in the events.
	Run, Cluster, By, Tool string

	mu   sync.Mutex
	kept *corev1.ConfigMap
	seq  int
	// soFar is what an earlier run had measured when it last wrote the log, if it did not come to its end.
	soFar []byte
	// notes are those of every step, of earlier runs as well.
	notes map[string][]history.Note
	// unsaved are lines that are not in the cluster yet.
	unsaved strings.Builder
	// begun tells that the run is at work, torn why the file has had no more lines since.
	begun bool
	torn  error
}

// Listener hears events beside the run, and tells what came of it. None of its methods but Settle waits for anything.
type Listener interface {
	// Hear takes an event.
	Hear(e history.Event)
	// Results are events about what was heard, each of them once.
	Results() []history.Event
	// Settle waits until nothing is under way any more, or the context ends.
	Settle(ctx context.Context)
}

// LoadEvents reads the log that is kept in the cluster.
func LoadEvents(ctx context.Context, reader client.Reader, namespace, id string) ([]history.Event, error) {
	_, events, err := readLog(ctx, reader, client.ObjectKey{Namespace: namespace, Name: id + EventsSuffix})
	return events, err
}

// readLog returns the ConfigMap with a log, and its events; nil when there is none.
func readLog(ctx context.Context, reader client.Reader, key client.ObjectKey) (*corev1.ConfigMap, []history.Event, error) {
	kept := &corev1.ConfigMap{}
	err := reader.Get(ctx, key, kept)
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading ConfigMap %s: %w", key, err)
	}
	var events []history.Event
	for line := range strings.Lines(kept.Data[eventsKey]) {
		var e history.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return kept, events, fmt.Errorf("reading ConfigMap %s: line %d: %w", key, len(events)+1, err)
		}
		events = append(events, e)
	}
	return kept, events, nil
}

// open reads what earlier runs logged, so that the numbers go on.
func (l *Log) open(ctx context.Context, c client.Client, namespace string) error {
	key := client.ObjectKey{Namespace: namespace, Name: l.Cluster + EventsSuffix}
	kept, events, err := readLog(ctx, c, key)
	if err != nil {
		return err
	}
	if len(events) > 0 {
		l.seq = events[len(events)-1].Seq
	}
	for i := range events {
		l.remember(&events[i])
	}
	if kept == nil {
		kept = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Labels: map[string]string{RecordLabel: l.Cluster}}}
	}
	l.kept, l.soFar = kept, kept.BinaryData[soFarKey]
	return nil
}

// maxNotes is how many notes of a step a report shows: a step that waits for long says a lot.
const maxNotes = 100

// remember keeps what an event notes about a step, for the report.
func (l *Log) remember(e *history.Event) {
	if e.Type != history.StepProgress || e.Step == "" {
		return
	}
	if l.notes == nil {
		l.notes = map[string][]history.Note{}
	}
	l.notes[e.Step] = append(l.notes[e.Step], history.Note{At: e.TS, Text: e.Message})
	if n := len(l.notes[e.Step]); n > maxNotes {
		l.notes[e.Step] = l.notes[e.Step][n-maxNotes:]
	}
}

// add logs an event, and what has come of earlier ones meanwhile.
func (l *Log) add(e history.Event) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.drain(); err != nil {
		return err
	}
	if err := l.write(&e); err != nil {
		return err
	}
	if l.Listener != nil {
		l.Listener.Hear(e)
	}
	return nil
}

// settle waits for what listens, for as long as the context lasts, and logs what came of it.
func (l *Log) settle(ctx context.Context) error {
	if l.Listener == nil {
		return nil
	}
	l.Listener.Settle(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.drain()
}

// drain logs what has come of earlier events. Nobody hears these: a hook about a failed hook would never end.
func (l *Log) drain() error {
	if l.Listener == nil {
		return nil
	}
	for _, e := range l.Listener.Results() {
		if err := l.write(&e); err != nil {
			return err
		}
	}
	return nil
}

// write gives an event its number and puts it where events go.
func (l *Log) write(e *history.Event) error {
	l.seq++
	e.V, e.Seq, e.TS, e.Run, e.Cluster = history.EventVersion, l.seq, l.Clock.Now().UTC().Truncate(time.Millisecond), l.Run, l.Cluster
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("writing event %d: %w", e.Seq, err)
	}
	line = append(line, '\n')
	l.remember(e)
	if l.Watch != nil {
		l.Watch(*e)
	}
	l.unsaved.Write(line)
	if !l.begun {
		return l.append(e.Seq, line)
	}
	// The log in the cluster is the one that counts. A disk that is full must not end a run between two steps behind the removal of the legacy member.
	if l.torn == nil {
		l.torn = l.append(e.Seq, line)
	}
	return nil
}

// append puts a line into the file.
func (l *Log) append(seq int, line []byte) error {
	if l.File == nil {
		return nil
	}
	if _, err := l.File.Write(line); err != nil {
		return fmt.Errorf("writing event %d: %w", seq, err)
	}
	return nil
}

// begin tells that what the log says has consequences from now on.
func (l *Log) begin() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
}

// tornAt says since which event the file has nothing any more; nil when it has all of them.
func (l *Log) tornAt() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.torn
}

// save brings the log in the cluster up to date, and puts beside it what was measured so far; nothing is written when nothing was logged. Only the holder of the lock writes it, but somebody
// may have put a label on it, or the answer to the last write was lost: then what is there counts.
func (l *Log) save(ctx context.Context, c client.Client, soFar []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.put(ctx, c, soFar)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		if err = l.reread(ctx, c); err == nil {
			err = l.put(ctx, c, soFar)
		}
	}
	return err
}

func (l *Log) put(ctx context.Context, c client.Client, soFar []byte) error {
	if l.unsaved.Len() == 0 {
		return nil
	}
	text := l.kept.Data[eventsKey] + l.unsaved.String()
	for len(text) > maxEvents {
		_, text, _ = strings.Cut(text, "\n")
	}
	next := l.kept.DeepCopy()
	next.Data, next.BinaryData = map[string]string{eventsKey: text}, nil
	if len(soFar) > 0 {
		next.BinaryData = map[string][]byte{soFarKey: soFar}
	}
	var err error
	if next.ResourceVersion == "" {
		err = c.Create(ctx, next, client.FieldOwner(kube.FieldOwner))
	} else {
		err = c.Update(ctx, next, client.FieldOwner(kube.FieldOwner))
	}
	if err != nil {
		return fmt.Errorf("writing ConfigMap %s/%s: %w", next.Namespace, next.Name, err)
	}
	l.kept = next
	l.unsaved.Reset()
	return nil
}

// reread takes over the log as it is in the cluster, and forgets of what is unsaved the lines that are there already.
func (l *Log) reread(ctx context.Context, c client.Client) error {
	fresh := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKeyFromObject(l.kept), fresh)
	if apierrors.IsNotFound(err) { // Somebody has removed it: it is made again, with what was in it.
		l.kept = &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: l.kept.Namespace, Name: l.kept.Name, Labels: l.kept.Labels}, Data: l.kept.Data,
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ConfigMap %s/%s: %w", l.kept.Namespace, l.kept.Name, err)
	}
	unsaved := l.unsaved.String()
	l.unsaved.Reset()
	for line := range strings.Lines(unsaved) {
		if !strings.Contains(fresh.Data[eventsKey], line) {
			l.unsaved.WriteString(line)
		}
	}
	l.kept = fresh
	return nil
}
