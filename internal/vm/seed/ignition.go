package seed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	ignition "github.com/flatcar/ignition/config/v2_3"
)

// Additions go into an Ignition configuration.
type Additions struct {
	Units []Unit
	Files []TextFile
}

// Unit is an enabled systemd unit.
type Unit struct{ Name, Contents string }

// TextFile is a small file on the root file system.
type TextFile struct {
	Path, Contents string
	Mode           int
}

var errIgnition = errors.New("unusable Ignition configuration")

// MergeIgnition adds units and files to a configuration of specification 2 or 3. Everything it does not know stays as it is, and
// a file or unit that is there already wins: whoever wrote the bootstrap data knows better.
func MergeIgnition(raw []byte, add Additions) ([]byte, error) {
	root := map[string]any{}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(&root); err != nil {
		// The decoder's message can quote the input, which is secret.
		return nil, fmt.Errorf("%w: no JSON object", errIgnition)
	}
	version, err := versionOf(root)
	if err != nil {
		return nil, err
	}
	if err := addUnits(root, add.Units); err != nil {
		return nil, err
	}
	if err := addFiles(root, add.Files, version); err != nil {
		return nil, err
	}
	merged, err := json.Marshal(root)
	if err != nil {
		return nil, fmt.Errorf("%w: encoding it", errIgnition)
	}
	if version == 2 {
		if _, report, err := ignition.Parse(merged); err != nil || report.IsFatal() {
			return nil, fmt.Errorf("%w: Ignition 2 refuses it; check the files and units of the KubeadmConfig", errIgnition)
		}
	}
	return merged, nil
}

func versionOf(root map[string]any) (int, error) {
	head, ok := root["ignition"].(map[string]any)
	if !ok {
		return 0, fmt.Errorf("%w: the key ignition is missing", errIgnition)
	}
	version, ok := head["version"].(string)
	switch {
	case !ok:
		return 0, fmt.Errorf("%w: the key ignition.version is missing", errIgnition)
	case strings.HasPrefix(version, "2."):
		return 2, nil
	case strings.HasPrefix(version, "3."):
		return 3, nil
	default:
		return 0, fmt.Errorf("%w: its version is none of 2.x and 3.x", errIgnition)
	}
}

func addUnits(root map[string]any, units []Unit) error {
	section, list, err := listIn(root, "systemd", "units")
	if err != nil {
		return err
	}
	for _, u := range units {
		if !holds(list, "name", u.Name) {
			list = append(list, map[string]any{"name": u.Name, "enabled": true, "contents": u.Contents})
		}
	}
	section["units"] = list
	return nil
}

func addFiles(root map[string]any, files []TextFile, version int) error {
	section, list, err := listIn(root, "storage", "files")
	if err != nil {
		return err
	}
	for _, f := range files {
		if holds(list, "path", f.Path) {
			continue
		}
		entry := map[string]any{
			"path": f.Path, "mode": f.Mode,
			"contents": map[string]any{"source": "data:," + url.PathEscape(f.Contents)},
		}
		if version == 2 {
			entry["filesystem"] = "root"
		} else {
			entry["overwrite"] = true
		}
		list = append(list, entry)
	}
	section["files"] = list
	return nil
}

// listIn finds root.section.key, or makes it.
func listIn(root map[string]any, section, key string) (map[string]any, []any, error) {
	in, ok := root[section].(map[string]any)
	if !ok {
		if root[section] != nil {
			return nil, nil, fmt.Errorf("%w: %s is no object", errIgnition, section)
		}
		in = map[string]any{}
		root[section] = in
	}
	list, ok := in[key].([]any)
	if !ok && in[key] != nil {
		return nil, nil, fmt.Errorf("%w: %s.%s is no list", errIgnition, section, key)
	}
	return in, list, nil
}

func holds(list []any, key, value string) bool {
	for _, item := range list {
		if entry, ok := item.(map[string]any); ok && entry[key] == value {
			return true
		}
	}
	return false
}

// additions have the same effect as the boothook of cloud-init guests.
func (in *Input) additions() Additions {
	return Additions{
		Units: []Unit{
			{Name: "run-capk-seed.mount", Contents: seedMount},
			{Name: "capk-setup.service", Contents: setupService},
		},
		Files: []TextFile{{Path: "/etc/hostname", Contents: in.Config.Name + "\n", Mode: 0o644}},
	}
}

const seedMount = `[Unit]
Description=Seed of the virtual machine
DefaultDependencies=no
Conflicts=umount.target
Before=umount.target

[Mount]
What=/dev/disk/by-label/CAPK
Where=/run/capk/seed
Type=iso9660
Options=ro

[Install]
WantedBy=multi-user.target
`

// setupService comes before all that uses what it prepares.
const setupService = `[Unit]
Description=Disks, volumes, name servers and clock of the virtual machine
Requires=run-capk-seed.mount
After=run-capk-seed.mount local-fs.target systemd-tmpfiles-setup.service
Before=docker.service containerd.service kubelet.service kubeadm.service iscsid.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/run/capk/seed/vm-agent setup /run/capk/seed

[Install]
WantedBy=multi-user.target
RequiredBy=kubeadm.service
`
