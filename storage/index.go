package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-ai/holdfast/proto/statepb"
)

// A damaged entry of an index stops one object, not the index: it is passed over, and its object is quarantined where
// the key tells which one it is (invariant 8).

// scanIndex decodes each entry into the message that f is given; f returns false to stop.
func scanIndex[M proto.Message](s *Store, prefix, start []byte, fresh func() M, f func(key []byte, entry M) bool) error {
	return s.view(func(v View) error {
		return s.scan(v, prefix, start, func(key, rec []byte) (bool, error) {
			entry := fresh()
			err := openMessage(key, rec, entry)
			if errors.Is(err, ErrCorrupt) {
				if s.damaged(key, err); key[0] == spaceNames {
					s.log.Error("damaged entry of the names index passed over", "error", err)
				}
				return true, nil
			}
			return err == nil && f(key, entry), err
		})
	})
}

// DueAlarms returns up to limit alarms that are due at until or before, earliest first; all if limit is 0.
func (s *Store) DueAlarms(until time.Time, limit int) ([]DueAlarm, error) {
	var out []DueAlarm
	err := s.alarms(func(a DueAlarm) bool {
		if a.Due.UnixMilli() > until.UnixMilli() {
			return false
		}
		out = append(out, a)
		return len(out) != limit
	})
	if err != nil {
		return nil, fmt.Errorf("read due alarms: %w", err)
	}
	return out, nil
}

// NextAlarm returns when the earliest alarm is due; ok is false if there is none.
func (s *Store) NextAlarm() (due time.Time, ok bool, err error) {
	err = s.alarms(func(a DueAlarm) bool {
		due, ok = a.Due, true
		return false
	})
	if err != nil {
		return time.Time{}, false, fmt.Errorf("read the next alarm: %w", err)
	}
	return due, ok, nil
}

func (s *Store) alarms(f func(DueAlarm) bool) error {
	fresh := func() *statepb.Due { return new(statepb.Due) }
	return scanIndex(s, header(spaceDue), nil, fresh, func(key []byte, e *statepb.Due) bool {
		return f(DueAlarm{
			Address: Address{Namespace: e.Namespace, Kind: e.Kind, Name: e.Name},
			Key:     e.Key,
			Due:     dueTime(key),
			System:  e.System,
		})
	})
}

// LiveTurns returns up to limit turns that have no terminal record, in no useful order; all if limit is 0.
func (s *Store) LiveTurns(limit int) ([]LiveTurn, error) {
	var out []LiveTurn
	fresh := func() *statepb.Live { return new(statepb.Live) }
	err := scanIndex(s, header(spaceLive), nil, fresh, func(key []byte, e *statepb.Live) bool {
		rest := key[headerLen+16:]
		out = append(out, LiveTurn{
			Address:     Address{Namespace: e.Namespace, Kind: e.Kind, Name: e.Name},
			Incarnation: binary.BigEndian.Uint32(rest),
			Turn:        binary.BigEndian.Uint64(rest[4:]),
		})
		return len(out) != limit
	})
	if err != nil {
		return nil, fmt.Errorf("read live turns: %w", err)
	}
	return out, nil
}

// Names returns up to limit names of objects of a kind after the given one, in order; all if limit is 0.
func (s *Store) Names(namespace, kind, after string, limit int) ([]string, error) {
	if err := (Address{Namespace: namespace, Kind: kind, Name: "-"}).validate(); err != nil {
		return nil, fmt.Errorf("list names: %w", err)
	}
	prefix := kindPrefix(namespace, kind)
	var start []byte
	if after != "" {
		start = append(append(bytes.Clone(prefix), after...), 0)
	}
	var out []string
	fresh := func() *statepb.Name { return new(statepb.Name) }
	err := scanIndex(s, prefix, start, fresh, func(key []byte, _ *statepb.Name) bool {
		out = append(out, string(key[len(prefix):]))
		return len(out) != limit
	})
	if err != nil {
		return nil, fmt.Errorf("list names of %s/%s: %w", namespace, kind, err)
	}
	return out, nil
}
