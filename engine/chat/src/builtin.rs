//! Built-in chat templates for models whose file contains no template.

/// Names of the built-in templates.
pub const NAMES: &[&str] = &["chatml", "gemma", "llama3", "mistral", "plain"];

/// Returns the source of the template `name`. `None` if no built-in template has that name.
pub(super) fn source(name: &str) -> Option<&'static str> {
    Some(match name {
        "chatml" => CHATML,
        "gemma" => GEMMA,
        "llama3" => LLAMA3,
        "mistral" => MISTRAL,
        "plain" => PLAIN,
        _ => return None,
    })
}

/// Template in the format of ChatML, which Qwen and many other models use.
const CHATML: &str = "\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// Template of Google's Gemma. Gemma has no system role, so the text of system messages is put before the next
/// message.
const GEMMA: &str = "\
{{- bos_token -}}
{%- set before = namespace(text='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set before.text = before.text + (message.content | trim) + '\\n\\n' -%}
    {%- else -%}
        {%- set role = 'model' if message.role == 'assistant' else message.role -%}
        {{- '<start_of_turn>' + role + '\\n' + before.text + ((message.content or '') | trim) + '<end_of_turn>\\n' -}}
        {%- set before.text = '' -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<start_of_turn>model\\n' -}}
{%- endif -%}
";

/// Template of Meta's Llama 3 and later.
const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' -}}
    {{- ((message.content or '') | trim) + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
{%- endif -%}
";

/// Template with the `[INST]` brackets of Mistral and Llama 2.
const MISTRAL: &str = "\
{{- bos_token -}}
{%- set before = namespace(text='') -%}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {%- set before.text = before.text + message.content + '\\n\\n' -%}
    {%- elif message.role == 'assistant' -%}
        {{- ' ' + ((message.content or '') | trim) + eos_token -}}
    {%- else -%}
        {{- '[INST] ' + before.text + (message.content or '') + ' [/INST]' -}}
        {%- set before.text = '' -%}
    {%- endif -%}
{%- endfor -%}
";

/// Template for models that were not trained to chat.
const PLAIN: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}
        {{- (message.content or '') + '\\n\\n' -}}
    {%- else -%}
        {{- message.role | capitalize + ': ' + (message.content or '') + '\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant:' -}}
{%- endif -%}
";
