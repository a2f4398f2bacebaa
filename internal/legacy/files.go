package legacy

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

// file is one file of a snapshot. Reading goes through store, so that a snapshot of thousands of files holds none of them open.
type file struct {
	// path is relative to the snapshot, with slashes.
	path string
	size int64
	// offset is where an archive's file lies in the spool.
	offset int64
}

// store gives access to the files of a snapshot.
type store struct {
	// root confines all reading to the directory, also through symbolic links; nil for archives.
	root  *os.Root
	spool *spool
	files []file
}

// open returns the contents of a file.
func (s *store) open(f file) (io.ReadCloser, error) {
	if s.root == nil {
		return io.NopCloser(s.spool.section(f.offset, f.size)), nil
	}
	opened, err := s.root.Open(f.path)
	if err != nil {
		return nil, err
	}
	// A file may have been replaced since it was listed, for example by a pipe that never ends.
	if info, err := opened.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("not a regular file"), err, opened.Close())
	}
	return opened, nil
}

// read returns a range of a file.
func (s *store) read(f file, offset, length int64) (data []byte, err error) {
	if s.root == nil {
		return s.spool.read(f.offset+offset, length)
	}
	opened, err := s.root.Open(f.path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	data = make([]byte, length)
	if _, err := opened.ReadAt(data, offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return data, nil
}

func (s *store) close() error {
	var err error
	if s.root != nil {
		err = s.root.Close()
	}
	return errors.Join(err, s.spool.close())
}

// spool is a temporary file for what neither fits into memory nor lies in a file of its own. It has no name while it is used, so
// it cannot be left behind.
type spool struct {
	mu   sync.Mutex
	file *os.File
	end  int64
}

// write appends data and returns where it begins.
func (s *spool) write(data []byte) (int64, error) {
	offset, _, err := s.copy(strings.NewReader(string(data)))
	return offset, err
}

// copy appends everything a reader gives.
func (s *spool) copy(r io.Reader) (offset, length int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		created, err := os.CreateTemp("", "legacy-snapshot-*") // mode 0600
		if err != nil {
			return 0, 0, fmt.Errorf("creating a temporary file: %w", err)
		}
		s.file = created
		if err := os.Remove(created.Name()); err != nil {
			return 0, 0, fmt.Errorf("unlinking a temporary file: %w", err)
		}
	}
	offset = s.end
	if _, err := s.file.Seek(offset, io.SeekStart); err != nil {
		return 0, 0, fmt.Errorf("writing a temporary file: %w", err)
	}
	length, err = io.Copy(s.file, r)
	s.end += length
	if err != nil {
		return offset, length, fmt.Errorf("writing a temporary file: %w", err)
	}
	return offset, length, nil
}

func (s *spool) section(offset, length int64) io.Reader {
	if s.file == nil {
		return strings.NewReader("")
	}
	return io.NewSectionReader(s.file, offset, length)
}

func (s *spool) read(offset, length int64) ([]byte, error) {
	data := make([]byte, length)
	if length == 0 {
		return data, nil
	}
	if _, err := s.file.ReadAt(data, offset); err != nil {
		return nil, fmt.Errorf("reading a temporary file: %w", err)
	}
	return data, nil
}

func (s *spool) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	err := s.file.Close()
	s.file = nil
	return err
}

// openStore lists the files at a path: of a directory, of an archive, or the one file it names.
func openStore(ctx context.Context, name string, opts Options) (*store, []finding.Finding, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, nil, fmt.Errorf("opening snapshot: %w", err)
	}
	if info.IsDir() {
		return openDirectory(ctx, name)
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("opening snapshot %s: neither a directory nor a regular file", printable(name))
	}
	opened, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("opening snapshot: %w", err)
	}
	defer opened.Close() //nolint:errcheck // only read from
	r := bufio.NewReaderSize(opened, streamChunk)
	head, _ := r.Peek(tarMagicAt + 5) // a short file has a short head
	switch {
	case len(head) > 2 && head[0] == 0x1f && head[1] == 0x8b:
		unzipped, err := gzip.NewReader(r)
		if err != nil {
			return nil, nil, fmt.Errorf("opening snapshot %s: %w", printable(name), err)
		}
		return openArchive(ctx, path.Base(name), bufio.NewReaderSize(unzipped, streamChunk), opts)
	case isTar(head) || strings.HasSuffix(name, ".tar"):
		return openArchive(ctx, path.Base(name), r, opts)
	}
	s, err := openSingle(name, info.Size())
	return s, nil, err
}

// tarMagicAt is where a tar header says that it is one.
const tarMagicAt = 257

func isTar(head []byte) bool {
	return len(head) >= tarMagicAt+5 && string(head[tarMagicAt:tarMagicAt+5]) == "ustar"
}

func openSingle(name string, size int64) (*store, error) {
	dir, base := ".", name
	if i := strings.LastIndexByte(name, os.PathSeparator); i >= 0 {
		dir, base = name[:i+1], name[i+1:]
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening snapshot: %w", err)
	}
	return &store{root: root, spool: &spool{}, files: []file{{path: base, size: size}}}, nil
}

func openDirectory(ctx context.Context, name string) (*store, []finding.Finding, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, nil, fmt.Errorf("opening snapshot: %w", err)
	}
	s := &store{root: root, spool: &spool{}}
	var problems []finding.Finding
	err = fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil:
			problems = append(problems, problem(ProblemFileUnreadable, name, "", "%s cannot be read: %s", name, reason(err)))
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() && entry.Name() == ".git":
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		// Root.Stat follows links, but only inside the root; loops and links that leave it are errors.
		info, err := root.Stat(name)
		switch link := entry.Type()&fs.ModeSymlink != 0; {
		case link && (err != nil || !info.Mode().IsRegular()):
			problems = append(problems, problem(ProblemLinkSkipped, name, "", "%s is a symbolic link to something that is no file of this snapshot", name))
		case err != nil:
			problems = append(problems, problem(ProblemFileUnreadable, name, "", "%s cannot be read: %s", name, reason(err)))
		case info.Mode().IsRegular():
			s.files = append(s.files, file{path: name, size: info.Size()})
		}
		return nil
	})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("listing snapshot: %w", err), root.Close())
	}
	slices.SortFunc(s.files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return s, problems, nil
}

// openArchive copies the files of a tar archive into the spool.
func openArchive(ctx context.Context, name string, r *bufio.Reader, opts Options) (*store, []finding.Finding, error) {
	s := &store{spool: &spool{}}
	if head, _ := r.Peek(tarMagicAt + 5); !isTar(head) {
		// A single document that was compressed; a short one fails the peek, too.
		offset, length, err := s.spool.copy(io.LimitReader(r, opts.MaxArchiveBytes))
		if err != nil && length == 0 {
			return nil, nil, errors.Join(fmt.Errorf("opening snapshot %s: %w", printable(name), err), s.close())
		}
		var problems []finding.Finding
		if err != nil {
			problems = append(problems, problem(ProblemArchiveDamaged, name, "", "the archive ends early: %s", reason(err)))
		}
		s.files = []file{{path: strings.TrimSuffix(name, ".gz"), offset: offset, size: length}}
		return s, problems, nil
	}
	problems, err := s.unpack(ctx, name, tar.NewReader(r), opts)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("unpacking snapshot %s: %w", printable(name), err), s.close())
	}
	slices.SortStableFunc(s.files, func(a, b file) int { return cmp.Compare(a.path, b.path) })
	return s, problems, nil
}

func (s *store) unpack(ctx context.Context, name string, archive *tar.Reader, opts Options) ([]finding.Finding, error) {
	var problems []finding.Finding
	seen := map[string]bool{}
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return problems, nil
		}
		if err != nil {
			return append(problems, problem(ProblemArchiveDamaged, name, "", "the archive cannot be read to its end: %s", reason(err))), nil
		}
		clean := path.Clean(strings.TrimPrefix(header.Name, "./"))
		switch {
		case header.Typeflag == tar.TypeDir || header.Typeflag == tar.TypeXGlobalHeader:
			continue
		case header.Typeflag != tar.TypeReg:
			problems = append(problems, problem(ProblemArchiveEntry, clean, "", "%s is a link or a device, not a file", clean))
			continue
		case !fs.ValidPath(clean) || clean == ".":
			problems = append(problems, problem(ProblemArchiveEntry, clean, "", "%s leads out of the archive", clean))
			continue
		case seen[clean]:
			problems = append(problems, problem(ProblemArchiveEntry, clean, "", "%s is in the archive twice; the first was used", clean))
			continue
		case s.spool.end+header.Size > opts.MaxArchiveBytes:
			return append(problems, problem(ProblemTooLarge, clean, "", "the archive unpacks to more than the limit of %d MiB; %s and what follows was not read",
				opts.MaxArchiveBytes/mebibyte, clean)), nil
		}
		seen[clean] = true
		offset, length, err := s.spool.copy(archive)
		s.files = append(s.files, file{path: clean, offset: offset, size: length})
		if err != nil {
			return append(problems, problem(ProblemArchiveDamaged, name, "", "the archive ends inside %s: %s", clean, reason(err))), nil
		}
	}
}

// reason is the innermost text of an error: file errors repeat the path, which the problem names anyway and which may be absolute.
func reason(err error) string {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err.Error()
	}
	return err.Error()
}
