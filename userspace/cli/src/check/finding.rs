// SPDX-License-Identifier: MIT OR Apache-2.0

//! One thing that was looked at.

use serde::Serialize;

/// What was found, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at; stable.
    pub what: &'static str,
    /// Of which device, if there is more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// How it is.
    pub state: State,
    /// In words, without a full stop.
    pub says: String,
    /// What to do, if something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How something is, as far as the direct path goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it must be.
    Pass,
    /// In the way.
    Fail,
    /// Neither; good to know.
    Note,
    /// It can't be told.
    Unknown,
}

impl Finding {
    fn new(what: &'static str, state: State, says: impl Into<String>) -> Self {
        Finding {
            what,
            object: None,
            state,
            says: says.into(),
            fix: None,
        }
    }

    /// It is as it must be.
    pub fn pass(what: &'static str, says: impl Into<String>) -> Self {
        Self::new(what, State::Pass, says)
    }

    /// It is in the way, and this helps.
    pub fn fail(what: &'static str, says: impl Into<String>, fix: impl Into<String>) -> Self {
        Finding {
            fix: Some(fix.into()),
            ..Self::new(what, State::Fail, says)
        }
    }

    /// It is good to know.
    pub fn note(what: &'static str, says: impl Into<String>) -> Self {
        Self::new(what, State::Note, says)
    }

    /// It can't be told, but would be after this.
    pub fn unknown(what: &'static str, says: impl Into<String>, fix: impl Into<String>) -> Self {
        Finding {
            fix: Some(fix.into()),
            ..Self::new(what, State::Unknown, says)
        }
    }

    /// The same, of this device.
    #[must_use]
    pub fn of(self, object: impl Into<String>) -> Self {
        Finding {
            object: Some(object.into()),
            ..self
        }
    }

    /// A line for people, and one more for the fix.
    pub fn to_text(&self) -> String {
        let state = match self.state {
            State::Pass => "pass",
            State::Fail => "FAIL",
            State::Note => "note",
            State::Unknown => "????",
        };
        let object = match &self.object {
            Some(object) => format!("{object}: "),
            None => String::new(),
        };
        let mut text = format!("  {state}  {:<10} {object}{}\n", self.what, self.says);
        if let Some(fix) = &self.fix {
            text += &format!("        {:<10} fix: {fix}\n", "");
        }
        text
    }
}
