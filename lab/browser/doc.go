// Package browser shows the HTML reports to a real Chromium, because a page is right only when a browser agrees: the policy
// lets the own script run and nothing else, nothing is fetched, contrast and structure satisfy axe-core in the light and the
// dark scheme, the keyboard reaches everything, and the page prints on A4.
//
// Chromium comes from the distribution, axe-core from its npm package, pinned by version and content. Neither is part of this
// repository. When they cannot be had the tests fail and say why; LAB_NO_BROWSER=1 skips them on purpose.
//
//	go test ./browser
//	LAB_SCREENSHOTS=/tmp/shots go test ./browser
package browser
