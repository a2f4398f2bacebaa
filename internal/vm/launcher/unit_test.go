package launcher

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/exit"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/health"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/qmp"
)

func good() *contract.Config {
	return &contract.Config{
		Name: "w", Cluster: "c", ProviderID: "kvm://c/w", Role: contract.RoleWorker, CPUs: 1, MemoryBytes: 1 << 30, Image: "debian",
		Disks:  []contract.Disk{{Name: contract.DiskRoot, SizeBytes: 1 << 30, Dir: contract.DisksDir}, {Name: contract.DiskEtcd, SizeBytes: 1, Dir: contract.EtcdDir}},
		Shares: []contract.Share{{Tag: "logs"}}, BootSeconds: 1, SilenceSeconds: 1,
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	text, err := contract.EncodeConfig(good())
	require.NoError(t, err)
	got, err := decode(text)
	require.NoError(t, err)
	assert.Equal(t, good(), got)
	for name, spoil := range map[string]func(c *contract.Config){
		"no name":                  func(c *contract.Config) { c.Name = "" },
		"unknown role":             func(c *contract.Config) { c.Role = "etcd" },
		"no memory":                func(c *contract.Config) { c.MemoryBytes = 1 },
		"no time to boot":          func(c *contract.Config) { c.BootSeconds = 0 },
		"no disks":                 func(c *contract.Config) { c.Disks = nil },
		"root is not first":        func(c *contract.Config) { c.Disks = c.Disks[1:] },
		"two disks of a name":      func(c *contract.Config) { c.Disks = append(c.Disks, c.Disks[1]) },
		"a disk called seed":       func(c *contract.Config) { c.Disks[1].Name = seedSerial },
		"a disk that leads out":    func(c *contract.Config) { c.Disks[1].Name = "../x" },
		"a disk without size":      func(c *contract.Config) { c.Disks[1].SizeBytes = 0 },
		"a disk somewhere else":    func(c *contract.Config) { c.Disks[1].Dir = "/etc" },
		"a share that leads out":   func(c *contract.Config) { c.Shares[0].Tag = ".." },
		"a tag that is too long":   func(c *contract.Config) { c.Shares[0].Tag = strings.Repeat("x", 32) },
		"two shares with one name": func(c *contract.Config) { c.Shares = append(c.Shares, c.Shares[0]) },
	} {
		c := good()
		spoil(c)
		text, err := contract.EncodeConfig(c)
		require.NoError(t, err)
		_, err = decode(text)
		require.ErrorIs(t, err, contract.ErrConfig, name)
		assert.Equal(t, contract.ExitConfig, exit.Code(err), name)
	}
	_, err = decode(`{"name":"w","unknown":1}`)
	assert.Equal(t, contract.ExitConfig, exit.Code(err))
}

func FuzzDecode(f *testing.F) {
	text, err := contract.EncodeConfig(good())
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text string) {
		c, err := decode(text)
		if err != nil {
			assert.Equal(t, contract.ExitConfig, exit.Code(err))
			return
		}
		for _, d := range c.Disks {
			assert.True(t, filepath.IsLocal(d.Name))
		}
	})
}

func FuzzParseBeat(f *testing.F) {
	f.Add([]byte(`{"v":1,"guest":{"bootID":"a","bootstrap":"running","kubelet":true,"api":false,"problems":["x"],"notMounted":["/data/x"]}}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		g, ok := parseBeat(line)
		if !ok {
			return
		}
		said, err := fit(contract.Report{Kind: contract.ReportGuest, Guest: g})
		require.NoError(t, err)
		assert.LessOrEqual(t, len(said), contract.MaxReportBytes)
		assert.NotContains(t, said, "\n")
		_, ok = contract.ParseReport([]byte(said))
		assert.True(t, ok)
	})
}

func TestAGuestCannotSayTooMuch(t *testing.T) {
	t.Parallel()
	problems := make([]string, 1000)
	for i := range problems {
		problems[i] = strings.Repeat("ü\"", 2000)
	}
	raw, err := json.Marshal(contract.Beat{Version: 1, Guest: contract.Guest{Bootstrap: contract.BootstrapFailed, Problems: problems}})
	require.NoError(t, err)
	_, ok := parseBeat(raw)
	assert.False(t, ok, "longer than any beat")
	raw, err = json.Marshal(contract.Beat{Version: 1, Guest: contract.Guest{Bootstrap: contract.BootstrapFailed, NotMounted: slices.Repeat([]string{strings.Repeat("x", 2000)}, 25)}})
	require.NoError(t, err)
	g, ok := parseBeat(raw)
	require.True(t, ok)
	line, err := fit(contract.Report{Kind: contract.ReportGuest, Guest: g})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(line), contract.MaxReportBytes)
	for _, other := range []string{"", "x", "{}", `{"v":1}`, `{"v":2,"guest":{"bootstrap":"running"}}`, `{"v":1,"guest":{"bootstrap":"dancing"}}`} {
		_, ok := parseBeat([]byte(other))
		assert.False(t, ok, other)
	}
}

func TestFitKeepsTheEndOfTheLog(t *testing.T) {
	t.Parallel()
	guest := &contract.Guest{Bootstrap: contract.BootstrapFailed, BootstrapLog: strings.Repeat("früher \"\x01\" ", 4000) + "the reason", Problems: []string{"p"}}
	before := guest.BootstrapLog
	line, err := fit(contract.Report{Kind: contract.ReportGuest, Guest: guest})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(line), contract.MaxReportBytes)
	got, ok := contract.ParseReport([]byte(line))
	require.True(t, ok)
	assert.True(t, strings.HasSuffix(got.Guest.BootstrapLog, "the reason"))
	assert.True(t, utf8.ValidString(got.Guest.BootstrapLog))
	assert.Equal(t, []string{"p"}, got.Guest.Problems)
	assert.Equal(t, before, guest.BootstrapLog, "what was passed in stays as it is")
}

func TestReportsAreMadeOnChangeOnly(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &reporter{out: &out, clock: clocktesting.NewFakePassiveClock(time.Unix(7, 0))}
	for _, kubelet := range []bool{false, false, true, true, false} {
		require.NoError(t, r.guest(contract.Guest{Bootstrap: contract.BootstrapRunning, Kubelet: kubelet}))
	}
	assert.Equal(t, 3, strings.Count(out.String(), contract.ReportPrefix))
	assert.Contains(t, out.String(), "1970-01-01T00:00:07Z")
}

// TestAGuestThatGoesOnIsLeftAlone: a guest that had been resumed was ended all the same when whatever it said came soon after the launcher's looks.
func TestAGuestThatGoesOnIsLeftAlone(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := clocktesting.NewFakeClock(time.Unix(7, 0))
	log, _ := logtest.NewNullLogger()
	l := &launcher{Options: Options{Clock: now, Log: log}, reports: &reporter{out: &out, clock: now}, config: good(), health: health.New(now, health.Rules{})}
	g, w := &guest{launcher: l}, &watching{}
	event := func(name, data string) { g.handle(w, qmp.Event{Name: name, Data: json.RawMessage(data)}) }
	look := func() {
		now.Step(tick)
		require.NoError(t, g.retry(t.Context(), w))
		g.beat(w, contract.Guest{Bootstrap: contract.BootstrapSucceeded})
	}
	problems := func() []string {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		report, ok := contract.ParseReport([]byte(lines[len(lines)-1]))
		require.True(t, ok)
		return report.Guest.Problems
	}
	lacks := func() {
		event("BLOCK_IO_ERROR", `{"node-name":"disk-root","nospace":true,"reason":"No space left on device"}`)
		event("STOP", `{}`)
	}
	lacks()
	event("RESUME", `{}`)
	lacks()
	g.beat(w, contract.Guest{Bootstrap: contract.BootstrapSucceeded})
	require.Len(t, problems(), 1, "what was said before the pause tells nothing")
	event("RESUME", `{}`)
	event("POWERDOWN", `{}`)
	look()
	assert.Empty(t, problems(), "it has gone on for as long as it takes to look again")
	for range 10 * good().SilenceSeconds {
		look()
	}
	lacks()
	assert.Len(t, problems(), 1, "a lack of room that comes later is another one")
}

// TestADiskErrorThatTheGuestIsToldKeepsNoTrafficAway: nothing says when such an error is over, so a machine with one would have got no traffic until its container is restarted.
func TestADiskErrorThatTheGuestIsToldKeepsNoTrafficAway(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := clocktesting.NewFakeClock(time.Unix(7, 0))
	log, _ := logtest.NewNullLogger()
	state := health.New(now, health.Rules{Role: contract.RoleWorker, Boot: time.Minute, Silence: time.Minute})
	l := &launcher{Options: Options{Clock: now, Log: log}, reports: &reporter{out: &out, clock: now}, config: good(), health: state}
	g, w := &guest{launcher: l}, &watching{}
	state.Started()
	g.beat(w, contract.Guest{Bootstrap: contract.BootstrapSucceeded, Kubelet: true})
	g.handle(w, qmp.Event{Name: "BLOCK_IO_ERROR", Data: json.RawMessage(`{"node-name":"disk-root","nospace":false,"reason":"Input/output error"}`)})
	assert.Contains(t, out.String(), "disk-root: Input/output error", "it is told")
	ready, why := state.Ready()
	assert.True(t, ready, why)
}

func TestTheConsoleIsKeptAndBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, text := range []string{"first start\n", "second start\n"} {
		c, err := openConsole(dir, 1000)
		require.NoError(t, err)
		_, err = c.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	raw, err := os.ReadFile(filepath.Join(dir, consoleName))
	require.NoError(t, err)
	assert.Equal(t, "first start\nsecond start\n", string(raw))

	c, err := openConsole(dir, 1000)
	require.NoError(t, err)
	for range 100 {
		_, err := c.Write(bytes.Repeat([]byte("x"), 90))
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	total := int64(0)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 2)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		total += info.Size()
	}
	assert.LessOrEqual(t, total, int64(2000))

	require.NoError(t, os.RemoveAll(dir))
	_, err = c.Write([]byte("nowhere to go"))
	require.NoError(t, err, "a console without a place holds up nobody")
}
