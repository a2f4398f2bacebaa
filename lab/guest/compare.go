package guest

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Comparison is what two builds of an image have in common.
type Comparison struct {
	// Same are the digests of the files that are equal to the byte, Different the names of the others.
	Same      map[string]string
	Different []string
	// Paths are what differs in the root: lines of the list of files that only the first (-) or only the second (+) build has, by path.
	Paths []string
}

// compare looks at the directories of two images.
func compare(first, second string) (*Comparison, error) {
	one, err := digests(first)
	if err != nil {
		return nil, err
	}
	two, err := digests(second)
	if err != nil {
		return nil, err
	}
	found := &Comparison{Same: map[string]string{}}
	all := maps.Clone(one)
	maps.Copy(all, two)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if one[name] == two[name] {
			found.Same[name] = one[name]
		} else {
			found.Different = append(found.Different, name)
		}
	}
	if slices.Contains(found.Different, filesFile) {
		found.Paths, err = differingLines(filepath.Join(first, filesFile), filepath.Join(second, filesFile))
	}
	return found, err
}

// digests of the files of a directory.
func digests(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading an image: %w", err)
	}
	all := map[string]string{}
	for _, e := range entries {
		if all[e.Name()], err = digestOf(filepath.Join(dir, e.Name())); err != nil {
			return nil, fmt.Errorf("reading an image: %w", err)
		}
	}
	return all, nil
}

func digestOf(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // Nothing was written.
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// differingLines are the lines that only one of two files has.
func differingLines(first, second string) ([]string, error) {
	marks := map[string]string{}
	for path, mark := range map[string]string{first: "-", second: "+"} {
		raw, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("comparing lists of files: %w", err)
		}
		for line := range strings.Lines(string(raw)) {
			marks[strings.TrimSuffix(line, "\n")] += mark
		}
	}
	var lines []string
	for _, line := range slices.Sorted(maps.Keys(marks)) {
		if mark := marks[line]; len(mark) == 1 {
			lines = append(lines, mark+" "+line)
		}
	}
	return lines, nil
}

// listTree writes a line for each path of a root, in their order: the path, what it is and who may do what, its owner, its time in seconds, and the digest of its content or where it leads.
func listTree(root string, to io.Writer) error {
	out := bufio.NewWriter(to)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line, err := describe(root, path, d)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, line)
		return err
	})
	return errors.Join(err, out.Flush())
}

func describe(root, path string, d fs.DirEntry) (string, error) {
	info, err := d.Info()
	if err != nil {
		return "", err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("describing %s: this system knows no owners", path)
	}
	content := "-"
	switch mode := info.Mode(); {
	case mode.IsRegular():
		content, err = digestOf(path)
	case mode&fs.ModeSymlink != 0:
		content, err = os.Readlink(path)
	case mode&fs.ModeDevice != 0:
		content = strconv.FormatUint(stat.Rdev, 10)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%q %s %d:%d %d %s", "/"+strings.TrimPrefix(strings.TrimPrefix(path, root), "/"), info.Mode(), stat.Uid, stat.Gid, info.ModTime().Unix(), content), nil
}
