// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is wrong with a configuration.

use vramio::Source;

/// What is wrong with a file, a key or a variable: one line, with the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cufile.json: {}", self.line())]
pub struct Error {
    /// Where: file and line, or a variable of the environment.
    pub place: Source,
    /// The key, with its sections. Empty where it is the file itself.
    pub key: String,
    /// The value, as it is written there. Empty where it is the file itself.
    pub value: String,
    /// What is wrong with it.
    pub problem: Problem,
    /// What would be right.
    pub wanted: String,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file can't be read.
    #[error("the file can't be read")]
    Unreadable,
    /// It is no JSON with comments.
    #[error("it is no JSON")]
    NotJson,
    /// There is no such key.
    #[error("there is no such key")]
    UnknownKey,
    /// A section or value of another type.
    #[error("the type is wrong")]
    WrongType,
    /// A value that the key does not take.
    #[error("the value is out of range")]
    OutOfRange,
    /// It is there twice, with two values.
    #[error("it is there before, with another value")]
    Twice,
}

impl Error {
    fn line(&self) -> String {
        let Error {
            place,
            key,
            value,
            problem,
            wanted,
        } = self;
        let fix = match problem {
            Problem::Unreadable => "let CUFILE_ENV_PATH_JSON name a file that can be read",
            Problem::NotJson => "correct the line",
            Problem::UnknownKey => "correct the name, or remove it",
            Problem::WrongType | Problem::OutOfRange => "correct the value, or remove it",
            Problem::Twice => "remove one of the two",
        };
        match place {
            Source::File { path, line: 0 } => {
                format!("{}: {problem}: {wanted}; fix: {fix}", path.display())
            }
            _ if key.is_empty() => format!("{place}: {problem}: {wanted}; fix: {fix}"),
            _ => format!("{place}: {key} = {value}: {problem}, wanted {wanted}; fix: {fix}"),
        }
    }
}
