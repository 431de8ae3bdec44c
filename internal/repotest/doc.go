// Package repotest holds the rules of the repository as a whole, as tests: who
// may import whom, that packages are documented, that links between documents
// lead somewhere. It exports nothing, and nothing imports it.
package repotest
