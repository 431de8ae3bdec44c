package zmq

// Decode is decode for tests.
var Decode = decode
