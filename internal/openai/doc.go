// Package openai knows what clients of the OpenAI API send and expect: it
// reads and edits request bodies as raw bytes and writes error objects.
//
// A body is checked and searched in one pass over its bytes, and edited by
// cutting and pasting spans of them. It is never decoded into a tree and never
// written anew: member order, number formats, white space and unknown fields
// reach the worker exactly as the client sent them.
//
// What is accepted is what encoding/json accepts, plus the literals NaN,
// Infinity and -Infinity. Where a name is repeated in an object the last one
// counts, as it does for the Python servers that read the body next: a router
// that took the first could route on another model than the worker serves.
//
// A Paths is immutable and may be shared. A Doc belongs to one goroutine at a
// time. The package starts no goroutine, reads no clock and speaks no HTTP.
package openai
