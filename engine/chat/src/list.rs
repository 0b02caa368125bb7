//! Lists that a template can change in place, as in Python. minijinja's own lists are immutable.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::template_tags::{Tag, literal_len, tags};

/// Name of the function that creates a list.
pub(super) const FUNCTION: &str = "anneal_list";

/// Maximum number of items.
const MOST_ITEMS: usize = 10_000;

/// List of texts, numbers and constants. The list contains no other lists, so it cannot contain itself.
#[derive(Debug, Default)]
pub(super) struct GrowingList(Mutex<Vec<Value>>);

impl GrowingList {
    /// Creates an empty list.
    pub(super) fn create() -> Value {
        Value::from_object(GrowingList::default())
    }

    fn items(&self) -> std::sync::MutexGuard<'_, Vec<Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the method `name`. `None` if the method does not change lists.
    pub(super) fn method(&self, name: &str, arguments: &[Value]) -> Option<Result<Value, Error>> {
        let failed = |why: &str| Some(Err(Error::new(ErrorKind::InvalidOperation, format!("{name}: {why}"))));
        let mut items = self.items();
        match (name, arguments) {
            ("append", [item]) => {
                let is_plain = matches!(
                    item.kind(),
                    ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None
                );
                if !is_plain || items.len() == MOST_ITEMS {
                    return failed(&format!(
                        "a list holds at most {MOST_ITEMS} texts, numbers and constants"
                    ));
                }
                items.push(item.clone());
                Some(Ok(Value::from(())))
            }
            ("pop", [] | [_]) => {
                let len = i64::try_from(items.len()).unwrap_or(i64::MAX);
                // As in Python, a negative index counts from the end.
                let index = arguments.first().map_or(Some(-1), Value::as_i64);
                let at = index.map(|index| if index < 0 { index + len } else { index });
                match at.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < items.len()) {
                    Some(at) => Some(Ok(items.remove(at))),
                    None => failed("the list has no item at this index"),
                }
            }
            _ => None,
        }
    }
}

impl Object for GrowingList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}

/// Makes lists growable if the template changes lists in place. Only the empty lists that tags of `source` assign to
/// variables are affected.
pub(super) fn with_lists(source: Cow<'_, str>) -> Cow<'_, str> {
    if !source.contains(".append(") {
        return source;
    }
    let mut text = String::with_capacity(source.len());
    let mut end = 0;
    for Tag { range, .. } in tags(&source).into_iter().filter(|tag| tag.is_statement) {
        text.push_str(&source[end..range.start]);
        push_growable(&source[range.clone()], &mut text);
        end = range.end;
    }
    text.push_str(&source[end..]);
    Cow::Owned(text)
}

/// Appends `tag` to `text`, with growable lists instead of empty ones. String literals stay unchanged.
fn push_growable(tag: &str, text: &mut String) {
    let growable = |code: &str| code.replace("= []", "=[]").replace("=[]", &format!("={FUNCTION}()"));
    let mut rest = tag;
    while let Some(start) = rest.find(['"', '\'']) {
        let (code, literal) = rest.split_at(start);
        let (literal, after) = literal.split_at(literal_len(literal.as_bytes()));
        text.push_str(&growable(code));
        text.push_str(literal);
        rest = after;
    }
    text.push_str(&growable(rest));
}

#[cfg(test)]
mod tests {
    use minijinja::Error;

    use crate::environment::{NAME, with_template};

    fn rendered(source: &str) -> Result<String, Error> {
        with_template(NAME, source)?.get_template(NAME)?.render(())
    }

    #[test]
    fn lists_change_as_in_python() {
        let fill = "=[] {% set l = [] %}{% set n = namespace(ids=[]) %}{% for i in range(4) %}{% set _ = n.ids.append(i) %}\
                    {% endfor %}";
        for (source, expected) in [
            ("{{ n.ids }} {{ n.ids | length }} {{ l }}", "=[] [0, 1, 2, 3] 4 []"),
            ("{{ n.ids.pop(0) }}{{ n.ids.pop() }}{{ n.ids[0] }}{{ n.ids | tojson }}", "=[] 031[1, 2]"),
            (
                "{% if l %}yes{% endif %}{% if n.ids %}no{% endif %}{% for i in n.ids %}{{ i }}{% endfor %}",
                "=[] no0123",
            ),
            ("{{ n.ids.pop(-4) }}{{ n.ids.pop(-1) }}{{ n.ids[-1] }}{{ n.ids }}", "=[] 032[1, 2]"),
            // String literals, comments, raw blocks and text outside tags stay unchanged.
            (
                "{% set s = \"a = [] \\\" %} =[]\" ~ '= []' %}{{ s }}{# {% don't #}{% set m = [] %}{{ m.append(s | length) }}{{ m }}",
                "=[] a = [] \" %} =[]= []None[19]",
            ),
            ("{% raw %}{% x = [] %}{% endraw %} = [] {{ 'b = []' }}", "=[] {% x = [] %} = [] b = []"),
            ("{% if [] == [] and l == [] %}{{ 'empty' }}{% endif %}", "=[] empty"),
            ("{{ n.ids is sequence }}{{ 2 in n.ids }}{{ (n.ids + [7])[-1] }}", "=[] TrueTrue7"),
        ] {
            assert_eq!(rendered(&format!("{fill}{source}")).expect(source), expected, "{source}");
        }
        for hostile in [
            "{{ n.ids.append(n.ids) }}",
            "{{ l.pop() }}",
            "{{ n.ids.pop(9) }}",
            "{{ n.ids.append([1]) }}",
            "{{ n.ids.pop(-5) }}",
            "{{ l.pop(-1) }}",
            "{{ n.ids.pop(-9223372036854775807 - 1) }}",
        ] {
            assert!(rendered(&format!("{fill}{hostile}")).is_err(), "{hostile}");
        }
    }
}
