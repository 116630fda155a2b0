// Package plot draws what the lab measured, as SVG and PNG, for the README and
// docs/findings.md: failovers by TTL, the knee, a timeline of who led, election
// latency and handover gaps.
//
// A title says the finding and is made from the numbers, so that it cannot say more
// than they do. The same input gives the same bytes. Colours are those of Okabe and
// Ito, which colour-blind people tell apart, and a series has a shape of its own
// besides.
package plot
