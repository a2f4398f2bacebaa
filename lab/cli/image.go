package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/guest"
	"github.com/giantswarm/cluster-api-provider-kvm/lab/legacyguest"
)

func newImage(e *env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Guest images of the lab's virtual machines",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImageBuild(e), newImageVerify(e), newImageList(e), newImageRemove(e))
	return cmd
}

func newImageBuild(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "build [legacy|next]",
		Short: "Build a guest image, unless the cache has it",
		Long: `build makes a guest image of Debian packages and the components of "lab build"
and keeps it in the cache ($LAB_CACHE/images). It needs root, debootstrap and
the archives that this machine gets its own packages from.

"build legacy" makes the image for the virtual machines of a legacy cluster:
Docker, Kubernetes 1.21 and etcd 3.5. Compiling those takes a quarter of an hour
the first time. "build next" makes the one for the machines that replace them:
containerd, kubeadm and Kubernetes 1.22.`,
		Example:   "  lab image build\n  lab image build legacy\n  lab image build next",
		Args:      usageArgs(cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: []string{"legacy", "next"},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := guest.New(guest.Options{Out: e.Err})
			if err != nil {
				return err
			}
			dir, err := b.Ensure(cmd.Context(), recipeOf(args))
			if err != nil {
				return err
			}
			return e.printf("%s\n", dir)
		},
	}
}

// recipeOf is the recipe that arguments name.
func recipeOf(args []string) guest.Recipe {
	switch {
	case slices.Contains(args, "legacy"):
		return legacyguest.Recipe()
	case slices.Contains(args, "next"):
		return legacyguest.Next()
	default:
		return guest.Default()
	}
}

// shownPaths is how many differing paths are shown.
const shownPaths = 20

func newImageVerify(e *env) *cobra.Command {
	var packages bool
	cmd := &cobra.Command{
		Use:   "verify [legacy|next]",
		Short: "Build a guest image once more and compare the two",
		Long: `verify builds a guest image a second time, beside the one in the cache, and says
which of their files are equal to the byte. It builds the first one as well, if
the cache has none. Where disks differ it shows what differs in the root; every
image has a list of its files, files.txt.

The second build takes from the cache what the first one left there: programs,
and the root with Debian's packages. With --packages it makes that root anew.
The image in the cache stays as it is. Exit code 1: they differ.`,
		Example:   "  lab image verify\n  lab image verify --packages",
		Args:      usageArgs(cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs)),
		ValidArgs: []string{"legacy", "next"},
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := guest.New(guest.Options{Out: e.Err})
			if err != nil {
				return err
			}
			found, err := b.Verify(cmd.Context(), recipeOf(args), packages)
			if err != nil {
				return err
			}
			return e.tellComparison(found)
		},
	}
	cmd.Flags().BoolVar(&packages, "packages", false, "install Debian's packages anew as well")
	return cmd
}

// tellComparison shows what two builds have in common, and is an error if that is not all.
func (e *env) tellComparison(found *guest.Comparison) error {
	for _, name := range slices.Sorted(maps.Keys(found.Same)) {
		if err := e.printf("same       %s  %s\n", found.Same[name], name); err != nil {
			return err
		}
	}
	for _, name := range found.Different {
		if err := e.printf("different  %s\n", name); err != nil {
			return err
		}
	}
	for _, line := range found.Paths[:min(shownPaths, len(found.Paths))] {
		if err := e.printf("  %s\n", line); err != nil {
			return err
		}
	}
	if len(found.Different) == 0 {
		return nil
	}
	return fmt.Errorf("two builds of one recipe differ in %d files of the image and %d lines of its list of files", len(found.Different), len(found.Paths))
}

func newImageList(e *env) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the guest images in the cache",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(_ *cobra.Command, _ []string) error {
			b, err := guest.New(guest.Options{})
			if err != nil {
				return err
			}
			images, err := b.List(guest.Default(), legacyguest.Recipe(), legacyguest.Next())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(e.Out, 0, 0, 3, ' ', 0)
			if _, err := fmt.Fprintln(w, "NAME\tALSO CALLED\tSIZE\tRECIPE\tCURRENT\tDIRECTORY"); err != nil {
				return fmt.Errorf("writing output: %w", err)
			}
			for _, i := range images {
				if _, err := fmt.Fprintf(w, "%s\t%s\t%d MiB\t%.12s\t%t\t%s\n", i.Name, strings.Join(i.Aliases, ", "), i.Bytes>>20, i.Digest, i.Current, i.Dir); err != nil {
					return fmt.Errorf("writing output: %w", err)
				}
			}
			return w.Flush()
		},
	}
}

func newImageRemove(_ *env) *cobra.Command {
	return &cobra.Command{
		Use:   "rm NAME…",
		Short: "Remove guest images from the cache",
		Args:  usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := guest.New(guest.Options{})
			if err != nil {
				return err
			}
			for _, name := range args {
				if err := b.Remove(cmd.Context(), name); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
