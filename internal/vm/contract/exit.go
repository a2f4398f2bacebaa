package contract

// Exit codes of the launcher. The kubelet shows them in the container's status, and the controller turns them into conditions.
const (
	// ExitPowerOff: the guest powered off after it was asked to.
	ExitPowerOff = 0
	// ExitConfig: the configuration cannot be used; restarting does not help.
	ExitConfig = 64
	// ExitImage: the base image is missing or unreadable.
	ExitImage = 65
	// ExitDiskFull: no room for a disk.
	ExitDiskFull = 66
	// ExitDisk: a disk of the machine is corrupt or of another image.
	ExitDisk = 67
	// ExitNetwork: bridge or tap cannot be made, for example because the name is taken.
	ExitNetwork = 68
	// ExitBootstrap: the bootstrap data are missing or of a format the image does not understand.
	ExitBootstrap = 69
	// ExitQEMU: QEMU could not be started.
	ExitQEMU = 70
	// ExitGuest: QEMU or the guest ended without having been asked.
	ExitGuest = 71
	// ExitKilled: the guest ignored the power button and QEMU was ended.
	ExitKilled = 72
	// ExitSilent: nothing was heard of the guest for longer than it may be silent, or it never spoke; it was ended for that.
	ExitSilent = 73
	// ExitInternal: anything else.
	ExitInternal = 1
)

// ExitReason is the reason for conditions that belongs to an exit code.
func ExitReason(code int) string {
	switch code {
	case ExitPowerOff:
		return "PoweredOff"
	case ExitConfig:
		return "InvalidConfiguration"
	case ExitImage:
		return "ImageMissing"
	case ExitDiskFull:
		return "DiskFull"
	case ExitDisk:
		return "DiskCorrupt"
	case ExitNetwork:
		return "NetworkTaken"
	case ExitBootstrap:
		return "BootstrapDataUnusable"
	case ExitQEMU:
		return "QEMUFailed"
	case ExitGuest:
		return "GuestEnded"
	case ExitKilled:
		return "GuestKilled"
	case ExitSilent:
		return "GuestSilent"
	default:
		return "LauncherFailed"
	}
}

// ExitCodes are all of them, in order.
func ExitCodes() []int {
	return []int{
		ExitPowerOff, ExitInternal, ExitConfig, ExitImage, ExitDiskFull, ExitDisk, ExitNetwork, ExitBootstrap, ExitQEMU, ExitGuest, ExitKilled,
		ExitSilent,
	}
}
