// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values: checked against what their keys take.

use std::collections::BTreeMap;
use std::fmt;

use jsonc_parser::ast;

use crate::error::Problem;
use crate::key::{Kind, Usual};

/// A value that its key takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of [`Kind::Flag`].
    Flag(bool),
    /// Of [`Kind::Number`].
    Number(i64),
    /// Of the kinds of texts.
    Text(String),
    /// Of [`Kind::Numbers`].
    Numbers(Vec<u64>),
    /// Of the kinds of lists of texts.
    Texts(Vec<String>),
    /// Of [`Kind::Mounts`].
    Mounts(BTreeMap<String, Vec<String>>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Flag(value) => write!(f, "{value}"),
            Value::Number(value) => write!(f, "{value}"),
            Value::Text(value) => write!(f, "{value:?}"),
            Value::Numbers(values) => write!(f, "{values:?}"),
            Value::Texts(values) => write!(f, "{values:?}"),
            Value::Mounts(values) => write!(f, "{values:?}"),
        }
    }
}

/// Why a value is none that its key takes, and what it would take.
pub(crate) type Wrong = (Problem, String);

impl Kind {
    /// What such a key takes.
    pub(crate) fn wanted(self) -> String {
        match self {
            Kind::Flag => "true or false".to_owned(),
            Kind::Number { least, most, step } => {
                let multiple = if step > 1 {
                    format!(", a multiple of {step}")
                } else {
                    String::new()
                };
                {
                    let least = if least == -1 {
                        "-1 for no limit, or a number from 1".to_owned()
                    } else {
                        format!("a number from {least}")
                    };
                    format!("{least} to {most}{multiple}")
                }
            }
            Kind::Text => "a text".to_owned(),
            Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
            Kind::Hexadecimal => "a text such as \"0x1f\"".to_owned(),
            Kind::Numbers => "a list of positive numbers".to_owned(),
            Kind::Texts => "a list of texts".to_owned(),
            Kind::Paths => "a list of absolute paths".to_owned(),
            Kind::Choices(choices) => format!("a list of some of {}", choices.join(", ")),
            Kind::Mounts => "an object of mounts, each with rdma_dev_addr_list".to_owned(),
        }
    }

    /// Takes a value of the file.
    pub(crate) fn take(self, value: &ast::Value<'_>) -> Result<Value, Wrong> {
        let wrong_type = Err((Problem::WrongType, self.wanted()));
        match (self, value) {
            (Kind::Flag, ast::Value::BooleanLit(value)) => Ok(Value::Flag(value.value)),
            (Kind::Number { .. }, ast::Value::NumberLit(number)) => self.number(number.value),
            (Kind::Text | Kind::Choice(_) | Kind::Hexadecimal, ast::Value::StringLit(text)) => {
                self.text(&text.value)
            }
            (Kind::Hexadecimal, ast::Value::NumberLit(number)) => self.text(number.value),
            (Kind::Numbers, ast::Value::Array(items)) => {
                let numbers = items.elements.iter().map(|item| match item {
                    ast::Value::NumberLit(number) => match number.value.parse::<u64>() {
                        Ok(number) if number > 0 => Ok(number),
                        _ => Err((Problem::OutOfRange, self.wanted())),
                    },
                    _ => Err((Problem::WrongType, self.wanted())),
                });
                numbers.collect::<Result<_, _>>().map(Value::Numbers)
            }
            (Kind::Texts | Kind::Paths | Kind::Choices(_), ast::Value::Array(_)) => {
                let texts = texts(value).ok_or((Problem::WrongType, self.wanted()))?;
                if self == Kind::Paths && texts.iter().any(|path| !path.starts_with('/')) {
                    return Err((Problem::OutOfRange, self.wanted()));
                }
                if let Kind::Choices(choices) = self {
                    let mut left = choices.to_vec();
                    for text in &texts {
                        let place = left.iter().position(|choice| choice == text);
                        left.remove(place.ok_or((Problem::OutOfRange, self.wanted()))?);
                    }
                }
                Ok(Value::Texts(texts))
            }
            (Kind::Mounts, ast::Value::Object(mounts)) => {
                let mount = |property: &ast::ObjectProp<'_>| {
                    let inside = match &property.value {
                        ast::Value::Object(inside) => &inside.properties[..],
                        _ => return None,
                    };
                    match inside {
                        [only] if only.name.as_str() == "rdma_dev_addr_list" => {
                            Some((property.name.as_str().to_owned(), texts(&only.value)?))
                        }
                        _ => None,
                    }
                };
                let mounts: Option<_> = mounts.properties.iter().map(mount).collect();
                mounts
                    .map(Value::Mounts)
                    .ok_or((Problem::WrongType, self.wanted()))
            }
            _ => wrong_type,
        }
    }

    /// Takes a value of the environment.
    pub(crate) fn take_text(self, text: &str) -> Result<Value, Wrong> {
        match self {
            Kind::Flag => match text.to_ascii_lowercase().as_str() {
                "true" | "on" | "yes" | "1" => Ok(Value::Flag(true)),
                "false" | "off" | "no" | "0" => Ok(Value::Flag(false)),
                _ => Err((Problem::OutOfRange, self.wanted())),
            },
            Kind::Number { .. } => self.number(text),
            _ => self.text(text),
        }
    }

    fn number(self, text: &str) -> Result<Value, Wrong> {
        let Kind::Number { least, most, step } = self else {
            return Err((Problem::WrongType, self.wanted()));
        };
        match text.parse::<i64>() {
            Ok(-1) if least == -1 => Ok(Value::Number(-1)),
            Ok(number) if (least.max(1)..=most).contains(&number) && number % step == 0 => {
                Ok(Value::Number(number))
            }
            Ok(0) if least == 0 => Ok(Value::Number(0)),
            _ => Err((Problem::OutOfRange, self.wanted())),
        }
    }

    fn text(self, text: &str) -> Result<Value, Wrong> {
        let good = match self {
            Kind::Choice(choices) => choices.iter().any(|known| known.eq_ignore_ascii_case(text)),
            Kind::Hexadecimal => {
                let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
                match digits {
                    Some(digits) => u64::from_str_radix(digits, 16).is_ok(),
                    None => text.parse::<u64>().is_ok(),
                }
            }
            _ => !text.contains('\0'),
        };
        if good {
            Ok(Value::Text(text.to_owned()))
        } else {
            Err((Problem::OutOfRange, self.wanted()))
        }
    }
}

fn texts(value: &ast::Value<'_>) -> Option<Vec<String>> {
    let items = value.as_array()?.elements.iter();
    items
        .map(|item| Some(item.as_string_lit()?.value.to_string()))
        .collect()
}

impl Usual {
    /// Whether a value is this.
    pub fn is(self, value: &Value) -> bool {
        match (self, value) {
            (Usual::Differs, _) => true,
            (Usual::Flag(usual), Value::Flag(value)) => usual == *value,
            (Usual::Number(usual), Value::Number(value)) => usual == *value,
            (Usual::Text(usual), Value::Text(value)) => usual.eq_ignore_ascii_case(value),
            (Usual::Numbers(usual), Value::Numbers(value)) => usual == value,
            (Usual::Texts(usual), Value::Texts(value)) => usual == value,
            _ => false,
        }
    }
}
