package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/cobra"

	"github.com/holdfast-ai/holdfast/internal/node"
)

// addFlags gives every setting that has a flag one.
func addFlags(cmd *cobra.Command, settings []node.Setting) {
	for _, s := range settings {
		if s.Flag == "" {
			continue
		}
		switch v := s.Default.(type) {
		case string:
			cmd.Flags().String(s.Flag, v, s.Help)
		case bool:
			cmd.Flags().Bool(s.Flag, v, s.Help)
		}
	}
}

// loadConfig merges the defaults, the file, the environment and the flags; later ones win. unknown are names in the
// environment that look like settings and are none. Its errors are *node.Error.
func loadConfig(path string, environ []string, cmd *cobra.Command) (c node.Config, k *koanf.Koanf, unknown []string, err error) {
	settings := node.Settings()
	k = koanf.New(".")
	for _, s := range settings {
		if err := k.Set(s.Key, s.Default); err != nil {
			return c, nil, nil, configError("default of "+s.Key, err)
		}
	}
	if path != "" {
		if err := loadFile(k, path, settings); err != nil {
			return c, nil, nil, err
		}
	}
	if unknown, err = loadEnv(k, environ, settings); err != nil {
		return c, nil, nil, err
	}
	for _, s := range settings {
		if s.Flag == "" || !cmd.Flags().Changed(s.Flag) {
			continue
		}
		if err := setText(k, s, cmd.Flags().Lookup(s.Flag).Value.String()); err != nil {
			return c, nil, nil, configError("--"+s.Flag, err)
		}
	}
	if err := k.UnmarshalWithConf("", &c, koanf.UnmarshalConf{Tag: "koanf"}); err != nil {
		return c, nil, nil, configError("settings", err)
	}
	return c, k, unknown, c.Validate()
}

func configError(what string, err error) error {
	return &node.Error{Code: node.CodeConfig, Message: what, Err: err, Hint: "docs/OPERATIONS.md lists all settings; `holdfast serve --print-config` shows those in force"}
}

// loadFile merges a YAML file into k. A key that is not a setting is an error: a typing mistake would otherwise go
// unseen until the default hurts.
func loadFile(k *koanf.Koanf, path string, settings []node.Setting) error {
	f := koanf.New(".")
	if err := f.Load(file.Provider(path), yaml.Parser()); err != nil {
		return configError("read "+path, err)
	}
	for _, key := range f.Keys() {
		if err := checkKey(key, settings); err != nil {
			return configError("read "+path, err)
		}
	}
	return k.Merge(f)
}

func checkKey(key string, settings []node.Setting) error {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.Key
	}
	if slices.Contains(keys, key) {
		return nil
	}
	for _, k := range keys {
		if strings.HasPrefix(k, key+".") {
			return fmt.Errorf("%q has settings below it, such as %q, and no value of its own", key, k)
		}
	}
	return fmt.Errorf("there is no setting %q; the closest is %q", key, closest(key, keys))
}

// loadEnv merges HOLDFAST_… variables into k.
func loadEnv(k *koanf.Koanf, environ []string, settings []node.Setting) (unknown []string, err error) {
	names := make(map[string]node.Setting, len(settings))
	for _, s := range settings {
		names[s.Env()] = s
	}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, "HOLDFAST_") {
			continue
		}
		s, ok := names[name]
		if !ok {
			unknown = append(unknown, name)
			continue
		}
		if err := setText(k, s, value); err != nil {
			return nil, configError(name, err)
		}
	}
	return unknown, nil
}

// setText sets a setting from text, as flags and the environment have it. Lists are separated by commas.
func setText(k *koanf.Koanf, s node.Setting, text string) error {
	var value any = text
	switch s.Default.(type) {
	case bool:
		switch text {
		case "true", "1":
			value = true
		case "false", "0", "":
			value = false
		default:
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case int:
		var n int
		if _, err := fmt.Sscanf(text, "%d", &n); err != nil || fmt.Sprint(n) != text {
			return fmt.Errorf("%q is not a whole number", text)
		}
		value = n
	case time.Duration:
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("%q is not a duration such as 10s", text)
		}
		value = d
	case []string:
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		value = list
	}
	return k.Set(s.Key, value)
}

// printConfig renders the settings in force as a file that would give them again.
func printConfig(k *koanf.Koanf) ([]byte, error) {
	p := koanf.New(".")
	for key, value := range k.All() {
		if d, ok := value.(time.Duration); ok { // a number of nanoseconds otherwise
			value = d.String()
		}
		if err := p.Set(key, value); err != nil {
			return nil, err
		}
	}
	b, err := p.Marshal(yaml.Parser())
	if err != nil {
		return nil, errors.Join(errors.New("render the settings"), err)
	}
	return b, nil
}

// closest is the candidate with the least editing distance to word.
func closest(word string, candidates []string) string {
	best, least := "", -1
	for _, c := range candidates {
		if d := distance(word, c); least < 0 || d < least {
			best, least = c, d
		}
	}
	return best
}

// distance counts insertions, deletions and substitutions between two words of bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
