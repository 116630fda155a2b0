// Package plot draws the measurements of the lab as SVG and PNG, for the README and
// docs/findings.md: failovers by TTL, the knee, a timeline of who led, election latency and
// handover gaps.
//
// A title states the finding and is made from the numbers. The same input gives the same bytes.
// The colours are those of Okabe and Ito, which colour-blind people can distinguish, and each
// series also has its own shape.
package plot
