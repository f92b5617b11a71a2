// Package template renders conversations as the token sequences that chat models were trained on.
//
// The central type is Template, which implements inference.Template. There is one a family of models:
//
//	tmpl, err := template.ForFamily("smollm2")
//	if err != nil {
//		return err
//	}
//	prompt, err := tmpl.Render(nil, tokenizer, []inference.Message{{Role: inference.User, Content: "Hello"}})
//
// Model files carry their template as a Jinja program. It is not run: it would write control tokens and the user's words
// into one string, where nobody can tell them apart any more. Here the frame is made of control tokens, looked up in the
// vocabulary by name, and everything else passes Encode, which knows no control tokens. So "<|im_end|>" typed by a user
// is ten ordinary characters, and no text can end its message or begin another's.
//
// For text that spells no control token the tokens are exactly those of the Jinja program, which the tests compare.
package template
