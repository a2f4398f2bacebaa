package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/builder"
)

// xzMagic starts a stream of xz.
const xzMagic = "\xfd7zXZ\x00"

// job is one build of an image.
type job struct {
	recipe   Recipe
	digest   string
	archives []archive
	assets   builder.Assets
	run      *runner

	cache, work, root, out string
	// fresh makes the root of packages anew, and keeps it to itself.
	fresh bool
	// kernel is the release of the guest's kernel, known once the packages are installed.
	kernel string
}

type step struct {
	what string
	do   func(context.Context) error
}

// steps is a build from top to bottom.
func (j *job) steps() []step {
	return []step{
		{"Debian packages", j.packages},
		{"files, Kubernetes and systemd units", j.install},
		{"kernel modules and initial RAM disk", j.boot},
		{"container images", j.images},
		{"cleaning", j.clean},
		{"list of files", j.list},
		{"disk", j.disk},
		{"manifest", j.finish},
	}
}

// packages makes a root with all packages, or takes the one it made last time.
func (j *job) packages(ctx context.Context) error {
	raw, err := json.Marshal([]any{j.recipe.Suite, j.recipe.Packages, j.archives, packagesScript, j.recipe.Epoch})
	if err != nil {
		return fmt.Errorf("digesting the packages: %w", err)
	}
	sum := sha256.Sum256(raw)
	base := filepath.Join(j.cache, "images", ".base-"+hex.EncodeToString(sum[:6])+".tar")
	if err := os.Mkdir(j.root, 0o755); err != nil { //nolint:gosec // The root directory of a system.
		return err
	}
	if _, err := os.Stat(base); err == nil && !j.fresh {
		return j.run.host(ctx, nil, "tar", "--numeric-owner", "--xattrs", "-C", j.root, "-xpf", base)
	}
	debs := filepath.Join(j.cache, "debs")
	if err := os.MkdirAll(debs, 0o755); err != nil { //nolint:gosec // Public packages.
		return err
	}
	if err := j.run.host(ctx, nil, "debootstrap", "--variant=minbase", "--cache-dir="+debs, j.recipe.Suite, j.root, j.archives[0].URI); err != nil {
		return err
	}
	env := []string{"DEBS=" + debs, "SOURCES=" + sourcesList(j.archives), "PACKAGES=" + strings.Join(j.recipe.Packages, " ")}
	if err := j.run.chroot(ctx, j.root, packagesScript, env, "sh", "-eux"); err != nil || j.fresh {
		return err
	}
	tmp := filepath.Join(j.work, "base.tar")
	if err := j.run.host(ctx, nil, "tar", "--numeric-owner", "--xattrs", "-C", j.root, "-cf", tmp, "."); err != nil {
		return err
	}
	return os.Rename(tmp, base)
}

// packagesScript installs the packages without starting anything and without what only people read.
const packagesScript = `
printf '%s' "$SOURCES" > /etc/apt/sources.list
printf 'exit 101\n' > /usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
# The kernel asks for an initial RAM disk with everything; the image has its own.
dpkg-divert --quiet --local --rename --add /usr/sbin/update-initramfs
ln -s /bin/true /usr/sbin/update-initramfs
cat > /etc/dpkg/dpkg.cfg.d/image <<EOF
force-unsafe-io
force-confold
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
EOF
apt-get update
apt-get upgrade -y --no-install-recommends
apt-get install -y --no-install-recommends $PACKAGES
rm -f /usr/sbin/policy-rc.d /etc/dpkg/dpkg.cfg.d/image /etc/apt/sources.list
find /var/lib/apt/lists /var/cache/apt -maxdepth 1 -type f -delete
`

// install puts our own files and the compiled programs into the root, and decides which units run.
func (j *job) install(ctx context.Context) error {
	if err := j.copyFiles(); err != nil {
		return err
	}
	r := j.recipe
	for _, where := range slices.Sorted(maps.Keys(r.Parts.Programs)) {
		to := filepath.Join(j.root, where)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // The guest's system directories.
			return err
		}
		if err := copyFile(j.assets[r.Parts.Programs[where]], to, 0o755); err != nil {
			return err
		}
	}
	err := j.run.chroot(ctx, j.root, unitsScript, []string{
		"ENABLE=" + strings.Join(r.Enable, " "), "DISABLE=" + strings.Join(r.Disable, " "), "MASK=" + strings.Join(r.Mask, " "),
	}, "sh", "-eux")
	if err != nil {
		return err
	}
	return j.run.chroot(ctx, j.root, r.Parts.Setup, nil, "sh", "-eux")
}

const setupScript = `
mkdir -p /opt/cni/bin /etc/cni/net.d /etc/containerd/certs.d /etc/containerd/conf.d /etc/kubernetes/manifests
for plugin in /usr/lib/cni/*; do ln -sf "$plugin" /opt/cni/bin/; done
# Where Ignition looks for it, as in Flatcar, to make users.
ln -sf ../sbin/chroot /usr/bin/chroot
`

const unitsScript = `
systemctl disable $DISABLE
systemctl enable $ENABLE
systemctl mask $MASK
systemctl set-default multi-user.target
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
`

// copyFiles writes the embedded files. What lies in a directory for programs or generators can be executed.
func (j *job) copyFiles() error {
	pairs := make([]string, 0, 2*len(j.recipe.Parts.Values))
	for _, placeholder := range slices.Sorted(maps.Keys(j.recipe.Parts.Values)) {
		pairs = append(pairs, placeholder, j.recipe.Parts.Values[placeholder])
	}
	values := strings.NewReplacer(pairs...)
	return j.recipe.Parts.walk(func(p string, raw []byte) error {
		to := filepath.Join(j.root, strings.TrimPrefix(p, "files/"))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // The guest's system directories.
			return err
		}
		mode := fs.FileMode(0o644)
		if dir := path.Base(path.Dir(p)); dir == "system-generators" || dir == "ignition" || dir == "sbin" || dir == "bin" {
			mode = 0o755
		}
		// A package may have put a link here, and the file must not go where it points.
		if err := os.RemoveAll(to); err != nil {
			return err
		}
		return os.WriteFile(to, []byte(values.Replace(string(raw))), mode)
	})
}

// boot drops modules, and makes kernel and initial RAM disk.
func (j *job) boot(ctx context.Context) error {
	releases, err := os.ReadDir(filepath.Join(j.root, "usr/lib/modules"))
	if err != nil {
		return err
	}
	if len(releases) != 1 {
		return fmt.Errorf("expected one kernel, found %d", len(releases))
	}
	j.kernel = releases[0].Name()
	for _, d := range j.recipe.DropModules {
		if err := os.RemoveAll(filepath.Join(j.root, "usr/lib/modules", j.kernel, "kernel", d)); err != nil {
			return err
		}
	}
	if err := j.unpackKernel(ctx); err != nil {
		return err
	}
	env := []string{
		"KERNEL=" + j.kernel, "MODULES=" + strings.Join(j.recipe.InitrdModules, " "), "INIT=" + initrdInit, "EPOCH=" + j.epoch(),
	}
	if err := j.run.chroot(ctx, j.root, initrdScript, env, "sh", "-eux"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(j.root, "boot", initrdFile), filepath.Join(j.out, initrdFile))
}

// unpackKernel takes the kernel proper out of the file that Debian ships, which unpacks itself at boot. QEMU starts it at its PVH entry
// point, and the guest saves the time: five seconds where there is no hardware virtualisation.
func (j *job) unpackKernel(ctx context.Context) error {
	raw, err := os.ReadFile(filepath.Join(j.root, "boot/vmlinuz-"+j.kernel))
	if err != nil {
		return err
	}
	start := bytes.Index(raw, []byte(xzMagic))
	if start < 0 {
		return errors.New("the kernel is not packed with xz")
	}
	packed := filepath.Join(j.work, "vmlinux.xz")
	if err := os.WriteFile(packed, raw[start:], 0o600); err != nil { //nolint:gosec // below a directory this job made
		return err
	}
	// Behind the stream follows the rest of the boot file.
	if err := j.run.host(ctx, nil, "xz", "--single-stream", "--decompress", "--keep", packed); err != nil {
		return err
	}
	return copyFile(filepath.Join(j.work, "vmlinux"), filepath.Join(j.out, kernelFile), 0o644)
}

// initrdScript packs busybox, the modules in loading order and init. Not compressed: the time to unpack it would be the guest's.
const initrdScript = `
depmod "$KERNEL"
dir=/var/tmp/initrd
mkdir -p $dir/bin $dir/dev $dir/proc $dir/sys $dir/root $dir/modules
cp /bin/busybox $dir/bin/busybox
for applet in sh mount umount insmod sleep chroot cat echo poweroff switch_root; do ln -s busybox $dir/bin/$applet; done
for module in $MODULES; do
  modprobe -S "$KERNEL" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' > $dir/paths
while read -r path; do
  cp "$path" $dir/modules/
  basename "$path" >> $dir/modules/order
done < $dir/paths
rm $dir/paths
printf '%s' "$INIT" > $dir/init
chmod 755 $dir/init
cd $dir
find . -exec touch -h -d "@$EPOCH" {} +
find . | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible > /boot/initrd.img
cd /
rm -r $dir
`

// images preloads the container images: the runtime of the guest itself imports them, where it can run here.
func (j *job) images(ctx context.Context) error {
	tools, err := j.tools(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(j.root, "images")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	parts := j.recipe.Parts
	if err := writeArchives(dir, parts.Images, j.assets, tools, j.time()); err != nil {
		return err
	}
	if parts.Preload == nil {
		err = j.importImages(ctx)
	} else {
		err = preload(parts.Preload, j.root, dir)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func preload(do func(string, []string) error, root, dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.tar"))
	if err != nil {
		return err
	}
	return do(root, archives)
}

// importImages lets the guest's own containerd import them, and makes of what it kept about that what it would have kept at any other time.
func (j *job) importImages(ctx context.Context) error {
	if err := j.run.chroot(ctx, j.root, importScript, nil, "sh", "-eux"); err != nil {
		return err
	}
	return rewriteDatabases(j.root, j.time())
}

// importScript: a containerd that was asked for its version has an identity from then on, which machines must not share.
const importScript = `
containerd --config /dev/null --log-level warn &
tries=0
until ctr version > /dev/null 2>&1; do
  tries=$((tries + 1))
  test $tries -lt 300
  sleep 0.1
done
for archive in /images/*.tar; do
  ctr -n k8s.io images import --snapshotter overlayfs "$archive"
done
ctr -n k8s.io images ls -q
kill $!
wait $! || test $? = 143
rm -f /var/lib/containerd/io.containerd.grpc.v1.introspection/uuid
`

// toolsScript prints "path real-path" for each program of the tools layer and all it is linked with.
const toolsScript = `
cd /
list() {
  for f in sh sleep cat ls cp mv rm mkdir rmdir chroot env grep sed ip nft conntrack iptables iptables-save iptables-restore \
    ip6tables ip6tables-save ip6tables-restore; do command -v $f; done
  ls /usr/lib/x86_64-linux-gnu/xtables/*.so
  echo /etc/protocols
  echo /etc/nsswitch.conf
}
list | while read -r f; do
  echo "$f"
  case $f in /etc/*) ;; *) ldd "$f" | sed -n 's/.*\s\(\/[^ ]*\) (.*/\1/p' ;; esac
done | LC_ALL=C sort -u | while read -r f; do
  echo "$(readlink -f "$(dirname "$f")")/$(basename "$f") $(readlink -f "$f")"
done
`

// tools are the files of the tools layer.
func (j *job) tools(ctx context.Context) (map[string]file, error) {
	out, err := j.run.chrootOutput(ctx, j.root, toolsScript)
	if err != nil {
		return nil, err
	}
	files := map[string]file{
		"/bin": {link: "usr/bin"}, "/sbin": {link: "usr/sbin"}, "/lib": {link: "usr/lib"}, "/lib64": {link: "usr/lib64"},
	}
	for line := range strings.Lines(out) {
		name, target, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("listing tools: unexpected line %q", line)
		}
		if name != target {
			files[name] = file{link: target}
		}
		info, err := os.Stat(filepath.Join(j.root, target))
		if err != nil {
			return nil, fmt.Errorf("listing tools: %w", err)
		}
		files[target] = file{source: filepath.Join(j.root, target), mode: int64(info.Mode().Perm())}
	}
	return files, nil
}

// clean records the packages and removes what a machine must not share with others or does not need.
func (j *job) clean(ctx context.Context) error {
	list, err := j.run.chrootOutput(ctx, j.root, "dpkg-query -W -f '${Package} ${Version}\\n' | LC_ALL=C sort")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(j.out, packagesFile), []byte(list), 0o644); err != nil { //nolint:gosec // Public.
		return err
	}
	env := []string{"DROP=" + strings.Join(j.recipe.DropPaths, " ")}
	if err := j.run.chroot(ctx, j.root, cleanScript, env, "sh", "-eux"); err != nil {
		return err
	}
	// From outside: what lies below the mounts of a chroot belongs to the image, too.
	return j.run.host(ctx, nil, "find", j.root, "-newermt", "@"+j.epoch(), "-exec", "touch", "-h", "-d", "@"+j.epoch(), "{}", "+")
}

// cleanScript: Python's compiled files are bound to the time stamps of their sources unless told otherwise, and without them a slow
// guest spends minutes compiling cloud-init at its first boot. They are made by one process with one seed, because they show in which order sets were walked, and what else the process had compiled. An empty machine-id makes systemd choose one at boot, and the .updated files say that nothing has to be rebuilt for it.
const cleanScript = `
for path in $DROP; do
  if mountpoint -q "$path"; then continue; fi
  if [ -d "$path" ]; then find "$path" -mindepth 1 -delete; else rm -f "$path"; fi
done
if [ -d /usr/lib/python3 ]; then
  find /usr/lib/python3 /usr/lib/python3.* -name __pycache__ -prune -exec rm -r {} +
  PYTHONHASHSEED=0 python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3 /usr/lib/python3.* || test $? = 1
fi
rm -f /etc/ssh/ssh_host_* /var/lib/systemd/random-seed /var/lib/dhcp/*
: > /etc/machine-id
: > /etc/.updated
: > /var/.updated
mkdir -p /var/log/journal /var/lib/ignition
`

// list writes down what is in the root, so that two images can be compared file by file.
func (j *job) list(context.Context) error {
	file, err := os.Create(filepath.Join(j.out, filesFile))
	if err != nil {
		return err
	}
	return errors.Join(listTree(j.root, file), file.Close())
}

// disk packs the root into a file system. Nothing is left for the guest's kernel to initialise.
func (j *job) disk(ctx context.Context) error {
	raw := filepath.Join(j.work, "disk.raw")
	if err := os.WriteFile(raw, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(raw, j.recipe.DiskBytes); err != nil {
		return err
	}
	err := j.run.host(ctx, j.fakeTime(), "mkfs.ext4", "-q", "-F", "-L", "root", "-U", j.recipe.DiskUUID,
		"-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard,hash_seed="+j.recipe.DiskUUID, "-d", j.root, raw)
	if err != nil {
		return err
	}
	if err := j.sameTimes(ctx, raw); err != nil {
		return err
	}
	return j.run.host(ctx, nil, "qemu-img", "convert", "-c", "-o", "compression_type=zstd", "-f", "raw", "-O", "qcow2", raw, filepath.Join(j.out, diskFile))
}

// fakeTime is the recipe's time for the programs of ext4.
func (j *job) fakeTime() []string { return []string{"E2FSPROGS_FAKE_TIME=" + j.epoch()} }

// sameTimes gives the inodes of the disk the recipe's time where mkfs.ext4 has that of a file of this machine which nobody can set: when its inode was changed, and when it was read.
func (j *job) sameTimes(ctx context.Context, raw string) error {
	facts, err := j.run.hostOutput(ctx, nil, "dumpe2fs", "-h", raw)
	if err != nil {
		return err
	}
	last, err := lastInode(facts)
	if err != nil {
		return err
	}
	script := filepath.Join(j.work, "times")
	if err := os.WriteFile(script, []byte(timesScript(last, j.recipe.Epoch)), 0o600); err != nil {
		return err
	}
	// It repeats each of its commands.
	_, err = j.run.hostOutput(ctx, j.fakeTime(), "debugfs", "-w", "-f", script, raw)
	return err
}

const (
	// rootInode is the root directory's. The others below firstInode are the file system's own.
	rootInode  = 2
	firstInode = 11
)

// lastInode is the number of the last inode that mkfs.ext4 has filled: it takes one after the other.
func lastInode(facts string) (int, error) {
	numbers := map[string]int{}
	for line := range strings.Lines(facts) {
		name, value, _ := strings.Cut(line, ":")
		if name != "Inode count" && name != "Free inodes" {
			continue
		}
		number, err := strconv.Atoi(strings.TrimSpace(value))
		if err != nil {
			return 0, fmt.Errorf("reading what dumpe2fs says: %w", err)
		}
		numbers[name] = number
	}
	if len(numbers) < 2 {
		return 0, fmt.Errorf("reading what dumpe2fs says: it counts no inodes:\n%s", facts)
	}
	return numbers["Inode count"] - numbers["Free inodes"], nil
}

// timesScript is for debugfs.
func timesScript(last int, epoch int64) string {
	var b strings.Builder
	for inode := rootInode; inode <= last; inode++ {
		if inode > rootInode && inode < firstInode {
			continue
		}
		for _, field := range []string{"atime", "ctime"} {
			fmt.Fprintf(&b, "set_inode_field <%d> %s @%d\n", inode, field, epoch)
		}
	}
	return b.String()
}

// finish writes the manifest for the launcher and the recipe, which says that the image is complete.
func (j *job) finish(_ context.Context) error {
	if err := writeJSON(filepath.Join(j.out, manifestFile), j.recipe.manifest()); err != nil {
		return err
	}
	return writeJSON(filepath.Join(j.out, recordFile), record{Digest: j.digest, Recipe: j.recipe})
}

func (j *job) time() time.Time { return time.Unix(j.recipe.Epoch, 0).UTC() }

func (j *job) epoch() string { return strconv.FormatInt(j.recipe.Epoch, 10) }

func writeJSON(to string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", filepath.Base(to), err)
	}
	return os.WriteFile(to, append(raw, '\n'), 0o644) //nolint:gosec // Read by the launcher as another user.
}

func copyFile(from, to string, mode fs.FileMode) error {
	if from == "" {
		return fmt.Errorf("copying to %s: %w", to, errors.New("the component was not built"))
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, raw, mode) //nolint:gosec // below a directory this job made
}
