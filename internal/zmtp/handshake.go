package zmtp

import (
	"errors"
	"slices"
	"sync"
	"time"
)

// talksTo lists, for each of our socket types, those it may meet.
var talksTo = map[string][]string{
	typeRouter: {"DEALER", "REQ", "ROUTER"},
	typeDealer: {"ROUTER", "REP", "DEALER"},
}

const (
	typeRouter = "ROUTER"
	typeDealer = "DEALER"
)

// handshake exchanges greetings and READY. It reads and writes at the same time: libzmq sends the first ten or
// eleven bytes of its greeting and waits for ours, and an in-memory connection may have no buffer at all.
// After an error the session is closed.
func (s *session) handshake(ours metadata) (metadata, error) {
	if err := s.nc.SetDeadline(time.Now().Add(s.lim.HandshakeTimeout)); err != nil {
		return metadata{}, err
	}
	greeted := make(chan struct{})
	var writing sync.WaitGroup
	var writeErr error
	writing.Go(func() { writeErr = s.introduce(ours, greeted) })
	theirs, err := s.meet(ours.socketType, greeted)
	if err != nil {
		s.close()
	}
	writing.Wait()
	if err == nil {
		err = writeErr
	}
	if err == nil {
		err = s.nc.SetDeadline(time.Time{})
	}
	if err != nil {
		s.close()
		return metadata{}, overdue(err, ReasonHandshakeTimeout)
	}
	s.turn <- struct{}{}
	return theirs, nil
}

// introduce writes our greeting at once, and READY when the peer's greeting is known to be good.
func (s *session) introduce(ours metadata, greeted <-chan struct{}) error {
	if _, err := s.nc.Write(appendGreeting(nil)); err != nil {
		return err
	}
	select {
	case <-greeted:
	case <-s.done:
		return nil // meet has the error
	}
	_, err := s.nc.Write(appendCommand(nil, cmdReady, ours.properties()))
	return err
}

// meet reads the peer's greeting, closes greeted, and reads its READY.
func (s *session) meet(ourType string, greeted chan<- struct{}) (metadata, error) {
	minor, err := readGreeting(s.scan.br)
	if err != nil {
		return metadata{}, err
	}
	s.minor = minor
	close(greeted)
	theirs, err := readReady(&s.scan)
	if err != nil {
		return metadata{}, err
	}
	if !slices.Contains(talksTo[ourType], theirs.socketType) {
		return metadata{}, &Error{ReasonSocketType, "peer is no match for " + ourType}
	}
	return theirs, nil
}

func readReady(s *scanner) (metadata, error) {
	it, err := s.next()
	if _, ok := errors.AsType[*Error](err); err != nil && !ok {
		err = cut(err, ReasonTruncated)
	}
	if err != nil {
		return metadata{}, err
	}
	if it.command == nil {
		return metadata{}, &Error{ReasonMalformed, "a message before READY"}
	}
	name, data, err := parseCommand(it.command)
	if err != nil {
		return metadata{}, err
	}
	switch name {
	case cmdReady:
		return parseMetadata(data)
	case cmdError:
		return metadata{}, &Error{ReasonPeerError, "ERROR in the handshake"}
	}
	return metadata{}, &Error{ReasonMalformed, "a command before READY"}
}
