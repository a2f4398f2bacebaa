package logging

import (
	"fmt"
	"io"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
)

// Format is the shape of a log line.
type Format string

// The formats.
const (
	FormatText Format = "text"
	FormatJSON Format = "json"
)

// Options say what a logger writes and where.
type Options struct {
	// Out receives the lines.
	Out io.Writer
	// Format is text when empty.
	Format Format
	// Verbosity as in Kubernetes programs: 0 shows what happened, 2 and more how, 5 and more everything.
	Verbosity int
}

// New makes a logger.
func New(opts Options) (*logrus.Logger, error) {
	logger := logrus.New()
	logger.SetOutput(opts.Out)
	logger.SetLevel(levelFor(opts.Verbosity))
	switch opts.Format {
	case FormatJSON:
		logger.SetFormatter(&logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano})
	case FormatText, "":
		logger.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: time.RFC3339})
	default:
		return nil, fmt.Errorf("making a logger: format %q is unknown; use %s or %s", opts.Format, FormatText, FormatJSON)
	}
	return logger, nil
}

func levelFor(verbosity int) logrus.Level {
	switch {
	case verbosity >= trace:
		return logrus.TraceLevel
	case verbosity >= debug:
		return logrus.DebugLevel
	default:
		return logrus.InfoLevel
	}
}

// Verbosities from which on a line of a library counts as debugging and as tracing.
const (
	debug = 1
	trace = 5
)

// Logr returns a logr.Logger that writes to a logrus logger.
func Logr(logger logrus.FieldLogger) logr.Logger {
	s := &sink{logger: logger}
	if l, ok := logger.(*logrus.Logger); ok {
		s.enabled = l.IsLevelEnabled
	}
	return logr.New(s)
}

// sink is a logr.LogSink.
type sink struct {
	logger  logrus.FieldLogger
	enabled func(logrus.Level) bool
	name    string
}

var _ logr.LogSink = &sink{}

func (s *sink) Init(logr.RuntimeInfo) {}

func (s *sink) Enabled(verbosity int) bool { return s.enabled == nil || s.enabled(levelFor(verbosity)) }

func (s *sink) Info(verbosity int, message string, pairs ...any) {
	entry := s.with(pairs)
	switch levelFor(verbosity) { //nolint:exhaustive // levelFor returns three levels.
	case logrus.TraceLevel:
		entry.WithField("v", verbosity).Debug(message)
	case logrus.DebugLevel:
		entry.Debug(message)
	default:
		entry.Info(message)
	}
}

func (s *sink) Error(err error, message string, pairs ...any) {
	entry := s.with(pairs)
	if err != nil {
		entry = entry.WithError(err)
	}
	entry.Error(message)
}

func (s *sink) WithValues(pairs ...any) logr.LogSink {
	return &sink{logger: s.with(pairs), enabled: s.enabled, name: s.name}
}

func (s *sink) WithName(name string) logr.LogSink {
	if s.name != "" {
		name = s.name + "/" + name
	}
	return &sink{logger: s.logger.WithField("logger", name), enabled: s.enabled, name: name}
}

// with adds key-value pairs as fields. Values are written out at once: an object that a library hands over may change later.
func (s *sink) with(pairs []any) logrus.FieldLogger {
	if len(pairs) == 0 {
		return s.logger
	}
	fields := logrus.Fields{}
	for i := 0; i+1 < len(pairs); i += 2 {
		fields[fmt.Sprint(pairs[i])] = text(pairs[i+1])
	}
	return s.logger.WithFields(fields)
}

// text writes a value as a log line shows it. Objects that only reveal themselves as JSON are named, not dumped: they may hold secrets.
func text(value any) any {
	switch v := value.(type) {
	case string, bool, int, int32, int64, uint, uint32, uint64, float64:
		return v
	case interface {
		GetNamespace() string
		GetName() string
	}:
		return v.GetNamespace() + "/" + v.GetName()
	case error:
		return v.Error()
	case fmt.Stringer:
		return v.String()
	case logr.Marshaler:
		return fmt.Sprint(v.MarshalLog())
	default:
		return fmt.Sprint(v)
	}
}
