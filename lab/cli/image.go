package cli

import (
	"fmt"
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
	cmd.AddCommand(newImageBuild(e), newImageList(e), newImageRemove(e))
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
			recipe := guest.Default
			if len(args) > 0 {
				recipe = map[string]func() guest.Recipe{"legacy": legacyguest.Recipe, "next": legacyguest.Next}[args[0]]
			}
			dir, err := b.Ensure(cmd.Context(), recipe())
			if err != nil {
				return err
			}
			return e.printf("%s\n", dir)
		},
	}
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
