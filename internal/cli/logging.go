package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/sirupsen/logrus"
)

// logOptions say where log lines go.
type logOptions struct {
	// stderr gets lines for people.
	stderr io.Writer
	// level is the least urgent one stderr shows.
	level logrus.Level
	// json makes stderr's lines JSON.
	json bool
	// file gets everything from debug on, as JSON; nil for none.
	file io.Writer
}

// newLogger is the only place that makes a logger. Every line passes the redactor before it reaches anything.
func newLogger(opts logOptions, secrets *redactor) *logrus.Logger {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(opts.level)
	logger.AddHook(secrets)
	var formatter logrus.Formatter = &logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: time.RFC3339}
	if opts.json {
		formatter = &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}
	}
	logger.AddHook(&sink{into: opts.stderr, formatter: formatter, least: opts.level})
	if opts.file != nil {
		least := max(logrus.DebugLevel, opts.level)
		logger.SetLevel(least)
		logger.AddHook(&sink{into: opts.file, formatter: &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}, least: least})
	}
	return logger
}

// sink writes lines of one urgency and above. Hooks run side by side, so what it writes into has to bear that: standard error has a lock, and of a file each line is one write at its end.
type sink struct {
	into      io.Writer
	formatter logrus.Formatter
	least     logrus.Level
}

func (s *sink) Levels() []logrus.Level { return logrus.AllLevels[:s.least+1] }

func (s *sink) Fire(entry *logrus.Entry) error {
	line, err := s.formatter.Format(entry)
	if err != nil {
		return fmt.Errorf("formatting a log line: %w", err)
	}
	_, err = s.into.Write(line)
	return err
}

// levelFor is the least urgent level shown. A view on the terminal wants silence around it; everything else gets what happened.
func levelFor(quiet, terminal bool, verbosity int) logrus.Level {
	switch {
	case quiet:
		return logrus.ErrorLevel
	case verbosity >= 6:
		return logrus.TraceLevel
	case verbosity >= 2:
		return logrus.DebugLevel
	case verbosity == 1:
		return logrus.InfoLevel
	case terminal:
		return logrus.WarnLevel
	default:
		return logrus.InfoLevel
	}
}

// openLogFile appends: two runs of an evening belong together.
func openLogFile(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the log file: %w", err)
	}
	return file, nil
}

// logSink lets libraries that log through logr (client-go, controller-runtime) write to our logger. What they call information is
// debugging to us, and their errors come back as errors anyway.
type logSink struct {
	logger logrus.FieldLogger
	name   string
}

var _ logr.LogSink = &logSink{}

// newLogr returns a logr.Logger that writes to a logrus logger.
func newLogr(logger logrus.FieldLogger) logr.Logger { return logr.New(&logSink{logger: logger}) }

func (s *logSink) Init(logr.RuntimeInfo) {}

// Enabled lets everything through: the logger's own level decides.
func (s *logSink) Enabled(int) bool { return true }

func (s *logSink) Info(_ int, message string, pairs ...any) {
	s.with(pairs).Debug(message)
}

func (s *logSink) Error(err error, message string, pairs ...any) {
	entry := s.with(pairs)
	if err != nil {
		entry = entry.WithField("err", err)
	}
	entry.Debug(message)
}

func (s *logSink) WithValues(pairs ...any) logr.LogSink {
	return &logSink{logger: s.with(pairs), name: s.name}
}

func (s *logSink) WithName(name string) logr.LogSink {
	if s.name != "" {
		name = s.name + "/" + name
	}
	return &logSink{logger: s.logger.WithField("logger", name), name: name}
}

func (s *logSink) with(pairs []any) logrus.FieldLogger {
	logger := s.logger
	for i := 0; i+1 < len(pairs); i += 2 {
		logger = logger.WithField(fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1]))
	}
	return logger
}
