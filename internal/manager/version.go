package manager

import (
	"encoding/json"
	"net/http"
	"runtime"
	"runtime/debug"
)

// Version is what /version and the version command show.
type Version struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	CPUs      int    `json:"cpus"`
	Processes int    `json:"goMaxProcs"`
}

// NewVersion describes the running program.
func NewVersion(version string) Version {
	v := Version{
		Version: version, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		CPUs: runtime.NumCPU(), Processes: runtime.GOMAXPROCS(0),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				v.Commit = setting.Value
			}
		}
	}
	return v
}

// ServeHTTP answers with the version as JSON.
func (v Version) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	raw, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// A client that went away needs no answer.
	_, _ = w.Write(append(raw, '\n'))
}
