package observe

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/history"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/plan"
)

// Process are the metrics of all migrations that one process runs. The zero value is of no use.
type Process struct {
	registry *prometheus.Registry
	fleet    *prometheus.GaugeVec

	mu       sync.Mutex
	clusters map[string]*Metrics
}

// New makes metrics in a registry of their own.
func New() *Process {
	return &Process{registry: prometheus.NewRegistry(), clusters: map[string]*Metrics{}}
}

// Handler answers scrapes.
func (p *Process) Handler() http.Handler {
	return promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{})
}

// Cluster are the metrics of one cluster, which every run of it in this process goes on with.
func (p *Process) Cluster(id string) *Metrics {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clusters[id] == nil {
		p.clusters[id] = newMetrics(p.registry, id)
	}
	return p.clusters[id]
}

// Fleet tells how many clusters of a fleet are in which state.
func (p *Process) Fleet(name string, states map[string]int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fleet == nil {
		p.fleet = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "migrate_fleet_clusters", Help: "Number of clusters of a fleet, by state.", ConstLabels: prometheus.Labels{"fleet": name}}, []string{"state"})
		p.registry.MustRegister(p.fleet)
	}
	for state, n := range states {
		p.fleet.WithLabelValues(state).Set(float64(n))
	}
}

// Metrics are those of one cluster's migration, as one process runs it. The zero value is of no use.
type Metrics struct {
	phase   *prometheus.GaugeVec
	step    *prometheus.GaugeVec
	seconds *prometheus.HistogramVec
	events  *prometheus.CounterVec
	failed  *prometheus.GaugeVec
	nodes   *prometheus.GaugeVec
	writes  *prometheus.Desc

	mu sync.Mutex
	// told are the writes that were counted last.
	told func() history.Writes
	// replaced are the workers that are replaced, of all.
	replaced map[string]bool
	all      int
	// ended tells that a step has ended since the last one began.
	ended bool
}

// buckets reach from steps that only look to nodes that drain for hours.
func buckets() []float64 {
	return []float64{1, 5, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400}
}

func newMetrics(registry *prometheus.Registry, cluster string) *Metrics {
	constant := prometheus.Labels{"cluster": cluster}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: constant}, labels)
	}
	m := &Metrics{
		replaced: map[string]bool{},
		phase:    gauge("migrate_phase", "1 for the phase that is worked on, or was worked on last.", "phase"),
		step:     gauge("migrate_step", "1 for the step that is worked on, or was worked on last.", "step"),
		failed:   gauge("migrate_last_error", "1 for the class of the failure that ended the last run; absent when none did.", "class"),
		nodes:    gauge("migrate_nodes", "Number of workers, by whether they are replaced.", "state"),
		seconds:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "migrate_step_seconds", Help: "How long steps took that were done, by phase.", ConstLabels: constant, Buckets: buckets()}, []string{"phase"}),
		events:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "migrate_events_total", Help: "Number of events, by type.", ConstLabels: constant}, []string{"type"}),
		writes:   prometheus.NewDesc("migrate_writes_total", "Number of requests that changed something, by verb.", []string{"verb"}, constant),
	}
	registry.MustRegister(m.phase, m.step, m.failed, m.nodes, m.seconds, m.events, m)
	return m
}

// Begin tells what a run works with: the ids of all workers, of those that are replaced, and where its writes are counted.
func (m *Metrics) Begin(workers, replaced []string, writes func() history.Writes) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told, m.all = writes, len(workers)
	m.replaced = map[string]bool{}
	for _, id := range replaced {
		m.replaced[id] = true
	}
	m.count()
}

// count shows how many workers are replaced.
func (m *Metrics) count() {
	m.nodes.WithLabelValues("replaced").Set(float64(len(m.replaced)))
	m.nodes.WithLabelValues("legacy").Set(float64(m.all - len(m.replaced)))
}

// Event takes one event of the log.
func (m *Metrics) Event(e history.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events.WithLabelValues(string(e.Type)).Inc()
	if e.Phase != "" && e.Type != history.HookDone && e.Type != history.HookFailed {
		m.phase.Reset()
		m.phase.WithLabelValues(e.Phase).Set(1)
	}
	switch e.Type { //nolint:exhaustive // the others are only counted
	case history.RunStarted, history.RunResumed:
		m.failed.Reset()
	case history.StepStarted:
		// Workers that are replaced at the same time begin one right after the other.
		if m.ended {
			m.step.Reset()
		}
		m.ended = false
		m.step.WithLabelValues(e.Step).Set(1)
	case history.RunFailed, history.RunPaused:
		// A step that failed may be tried again, and a worker that is blocked be put off: only how the run ends counts.
		if e.Class != "" {
			m.failed.WithLabelValues(e.Class).Set(1)
		}
	case history.StepUndone, history.StepFailed, history.StepBlocked, history.StepSkipped:
		m.ended = true
	case history.StepDone:
		m.ended = true
		if took, err := time.ParseDuration(e.Took); err == nil {
			m.seconds.WithLabelValues(e.Phase).Observe(took.Seconds())
		}
		if plan.ReplacesWorker(e.Step) {
			m.replaced[e.Step] = true
			m.count()
		}
	}
}

// Describe is what a collector says of itself.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) { to <- m.writes }

// Collect reads the writes when somebody asks.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	told := m.told
	m.mu.Unlock()
	if told == nil {
		return
	}
	for verb, n := range told().ByOne {
		to <- prometheus.MustNewConstMetric(m.writes, prometheus.CounterValue, float64(n), verb)
	}
}
