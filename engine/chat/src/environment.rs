//! Environment in which chat templates run: jinja2 as transformers configures it, with limits.

use std::borrow::Cow;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat;

use super::json;
use super::list::{self, GrowingList, with_lists};
use super::template_tags::tags;

/// Maximum number of steps of a rendering: 2000 for each of 1000 messages. Real templates take about 100 steps per
/// message. An endless loop soon reaches this limit, but a single step on a long text can be slow, so
/// [`super::template`] also limits the time. The number of steps also bounds the depth of nested values, because each
/// level takes about eight steps; see [`super::stack`].
pub(super) const FUEL: u64 = 2_000_000;

/// Maximum depth of macro calls.
const DEPTH: usize = 120;

/// Name of the only template in the environment.
pub(super) const NAME: &str = "chat";

/// Creates an environment with the compiled template `source`. The environment has no loader, so a template cannot
/// read files.
///
/// # Errors
/// If the template has a syntax error or a tag that is too long.
pub(super) fn with_template(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(method);
    environment.set_recursion_limit(DEPTH);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(true);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function(list::FUNCTION, GrowingList::create);
    environment.add_function("strftime_now", |format: &str| llama::strftime_now(format));
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("fromjson", json::fromjson);
    environment.add_filter("indent", indent);
    // In Python, a string is a sequence of characters, and `None` is not iterable.
    environment.add_test("iterable", |value: &Value| match value.kind() {
        ValueKind::String => true,
        ValueKind::None => false,
        _ => value.try_iter().is_ok(),
    });
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    check_tags(source)?;
    environment.add_template_owned(name, with_lists(without_generation(source)).into_owned())?;
    Ok(environment)
}

/// Maximum size of a tag, in bytes outside its string literals. Real tags have a few hundred bytes. minijinja folds
/// constants when it compiles. If folding fails, as for `2**2**2…`, the time is quadratic in the length of the
/// expression.
const MAX_TAG: usize = 4096;

/// Rejects templates with tags that would take too long to compile.
fn check_tags(source: &str) -> Result<(), Error> {
    let Some(tag) = tags(source).into_iter().find(|tag| tag.code > MAX_TAG) else { return Ok(()) };
    let line = source.as_bytes()[..tag.range.start].iter().filter(|&&byte| byte == b'\n').count() + 1;
    let why = format!("the tag on line {line} is longer than {MAX_TAG} bytes");
    Err(Error::new(ErrorKind::SyntaxError, why))
}

/// Prefix of errors that the template raises deliberately.
pub(super) const RAISED: &str = "raise_exception: ";

fn raise_exception(why: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{why}")))
}

/// Implements the filter `indent` as in jinja2. The filter keeps a trailing newline.
fn indent(text: &str, width: Option<Value>, first: Option<bool>, options: Kwargs) -> Result<String, Error> {
    let width = match width {
        Some(width) => Some(width),
        None => options.get::<Option<Value>>("width")?,
    };
    let by = match width.as_ref().map(|width| (width.as_str(), width.as_usize())) {
        None => "    ".to_string(),
        Some((Some(text), _)) if text.len() <= MAX_INDENT => text.to_string(),
        Some((_, Some(width))) if width <= MAX_INDENT => " ".repeat(width),
        Some(_) => {
            let why = format!(
                "indent: the width must be a number up to {MAX_INDENT} or a string of at most {MAX_INDENT} bytes"
            );
            return Err(Error::new(ErrorKind::InvalidOperation, why));
        }
    };
    let first = match first {
        Some(first) => first,
        None => options.get::<Option<bool>>("first")?.unwrap_or(false),
    };
    let blank = options.get::<Option<bool>>("blank")?.unwrap_or(false);
    options.assert_all_used()?;
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut indented = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            indented.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            indented.push_str(&by);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

const MAX_INDENT: usize = 1000;

/// Calls a Python method. Methods that pycompat lacks are implemented here; pycompat provides the others.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(result) =
        value.downcast_object_ref::<GrowingList>().and_then(|list| list.method(name, arguments))
    {
        return result;
    }
    if let (Some(text), [part]) = (value.as_str(), arguments)
        && let Some(part) = part.as_str()
    {
        match name {
            "removeprefix" => return Ok(Value::from(text.strip_prefix(part).unwrap_or(text))),
            "removesuffix" => return Ok(Value::from(text.strip_suffix(part).unwrap_or(text))),
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Replaces the tag `{% generation %}` with a block without effect. transformers uses the tag to mark the assistant's
/// text for training.
fn without_generation(source: &str) -> Cow<'_, str> {
    if !source.contains("endgeneration") {
        return Cow::Borrowed(source);
    }
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        text.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim() {
            "generation" => text.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => text.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => text.push_str(tag),
        }
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str) -> Result<String, Error> {
        let tools: super::super::Json = serde_json::from_str(
            r#"{"z": 1, "a": [true, null, 2.5, 1e20], "text": "<b> & 'é' \"q\" \n", "empty": {}, "none": []}"#,
        )
        .expect("JSON");
        let environment = with_template(NAME, source)?;
        environment.get_template(NAME)?.render(minijinja::context! { tools => tools.0, yes => true })
    }

    /// The expected texts are the output of jinja2 3.1 in transformers' environment.
    #[test]
    fn it_renders_as_jinja2_does() {
        let cases = [
            (
                "{{ tools | tojson }}",
                r#"{"z": 1, "a": [true, null, 2.5, 1e+20], "text": "<b> & 'é' \"q\" \n", "empty": {}, "none": []}"#,
            ),
            ("{{ tools.a | tojson(indent=2) }}", "[\n  true,\n  null,\n  2.5,\n  1e+20\n]"),
            (
                "{{ {'k': {'b': 1, 'a': []}} | tojson(indent=4) }}",
                "{\n    \"k\": {\n        \"b\": 1,\n        \"a\": []\n    }\n}",
            ),
            ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", "{\"a\": 2, \"b\": 1}"),
            ("{{ {'b': 1, 'a': [2, 3]} | tojson(separators=(',', ':')) }}", "{\"b\":1,\"a\":[2,3]}"),
            ("{{ 'é𝄞' | tojson(ensure_ascii=True) }}", "\"\\u00e9\\ud834\\udd1e\""),
            ("{{ 'é' | tojson }}", "\"é\""),
            ("{{ true }} {{ none }} {{ yes }} {{ missing }}|", "True None True |"),
            ("{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}{{ 'ab'.removesuffix('x') }}", "baab"),
            ("{{ ' x '.strip() }}{{ 'a</t>b'.split('</t>')[-1] }}{{ 'abc'.startswith('ab') }}", "xbTrue"),
            (
                "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
                "13",
            ),
            ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
            ("{% for k, v in tools.items() %}{{ k }},{% endfor %}", "z,a,text,empty,none,"),
            (
                "{% set n = namespace(x=1) %}{% for i in range(3) %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
                "4",
            ),
            ("{% generation %}a{% endgeneration %}{%- generation -%} b {%- endgeneration -%}", "ab"),
            ("{% macro m(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ m('a') }}{{ m('b', y='c') }}", "adbc"),
            (
                "{{ 'text' is iterable }} {{ 'text' is sequence }} {{ tools is mapping }} {{ 'a' is string }}",
                "True True True True",
            ),
            ("{{ [1, 2, 3][1:] | length }}{{ [1, 2, 3][::-1][0] }}", "23"),
            ("{{ '%s-%d' | format('a', 3) }}", "a-3"),
            ("{{ none is iterable }} {{ [] is iterable }} {{ 5 is iterable }}", "False True False"),
            (
                "{{ '{\\n' | indent(2, first=true) }}|{{ 'a\\n\\nb' | indent }}|{{ 'a\\nb' | indent('> ', true) }}|",
                "  {\n|a\n\n    b|> a\n> b|",
            ),
            ("{{ 'a\\n\\nb' | indent(width=1, blank=True) }}", "a\n \n b"),
        ];
        for (source, expected) in cases {
            assert_eq!(rendered(source).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn a_tag_has_an_end() {
        let long = "a".repeat(MAX_TAG + 1);
        let cases = [
            (format!("{{{{ '{long}' }}}}"), true),
            (format!("{{{{ \"\\\"{long}\" }}}}"), true),
            (format!("{{# {long} {{{{ #}}"), true),
            (format!("{long} {{ {long}"), true),
            (format!("{{{{ 1 }}}}{long}{{% if 1 %}}{long}{{% endif %}}"), true),
            (format!("{{{{ {long} }}}}"), false),
            (format!("a\n{{%- if '}}}}' == {long}"), false),
            (format!("{{% raw %}}{{#{{% endraw %}}{{{{ {long} }}}}"), false),
            (format!("{{%- raw -%}}{{# {{%+ endraw%}}a{{{{ {long} }}}}"), false),
            (format!("{{% raw %}}{{{{ {long}{{% endraw %}}{{{{ 1 }}}}"), true),
            (format!("{{% raw %}}{{{{ {long}"), true),
            (format!("{{% rawer {long} %}}"), false),
            (format!("{{% set x = {{'a': {{}}}} + {long} %}}"), false),
            (format!("{{{{ {{'a': {{}}, 'b': {long}}} }}}}"), false),
            (format!("{{{{ {{'a': [{{}}]}} }}}}{long}{{% if (a) %}}}}}}{long}{{% endif %}}"), true),
            ("{{".to_string(), true),
            ("{".to_string(), true),
        ];
        for (source, taken) in cases {
            assert_eq!(check_tags(&source).is_ok(), taken, "{source:.40}");
        }
    }

    #[test]
    fn now_has_a_year() {
        let year = rendered("{{ strftime_now('%Y') }}").expect("a year");
        assert!(year.len() == 4 && year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
        assert_eq!(rendered("{{ strftime_now('') }}|").expect("nothing"), "|");
        assert_eq!(rendered("{{ strftime_now('%%é') }}").expect("a text"), "%é");
    }

    #[test]
    fn a_hostile_template_comes_to_an_end() {
        let cases = [
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% for i in range(10 ** 12) %}x{% endfor %}",
            "{{ 'x' * 1000000000000 }}",
            "{{ [0] * 1000000000000 }}",
            "{% include '/etc/passwd' %}",
            "{% extends '/etc/passwd' %}",
            "{{ tools.__class__.__mro__ }}",
            "{{ 1 // 0 }}",
            "{{ x | tojson }}",
            "{{ [1] | tojson(indent=1000000000) }}",
        ];
        for source in cases {
            assert!(rendered(source).is_err(), "{source} was rendered");
        }
    }
}
