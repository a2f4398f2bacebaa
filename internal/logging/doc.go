// Package logging makes the logger of long-running programs and lets libraries that log through logr or klog write to it.
package logging
