package cli

import "io"

var (
	nameFirst = []string{"amber", "autumn", "bright", "calm", "clear", "copper", "early", "gentle", "golden", "green", "hidden",
		"ivory", "late", "little", "lunar", "mellow", "misty", "northern", "open", "patient", "quiet", "silver", "slow", "southern",
		"steady", "still", "sunny", "tidal", "velvet", "warm", "western", "winter"}
	nameSecond = []string{"anchor", "bay", "birch", "brook", "cedar", "cliff", "cove", "dune", "fern", "field", "harbor", "heron",
		"island", "kelp", "lagoon", "lantern", "larch", "meadow", "moss", "otter", "pebble", "pine", "plover", "reef", "river", "sail",
		"shell", "shore", "stone", "tern", "wave", "willow"}
)

const nameTail = "23456789abcdefghjkmnpqrstvwxyz"

// newSessionName makes a name that is easy to say, such as quiet-heron-7kd2, as the chat page does.
func newSessionName(random io.Reader) (string, error) {
	var b [6]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", err
	}
	tail := make([]byte, 4)
	for i := range tail {
		tail[i] = nameTail[int(b[2+i])%len(nameTail)]
	}
	return nameFirst[int(b[0])%len(nameFirst)] + "-" + nameSecond[int(b[1])%len(nameSecond)] + "-" + string(tail), nil
}
