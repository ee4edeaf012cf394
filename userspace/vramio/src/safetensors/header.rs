// SPDX-License-Identifier: MIT OR Apache-2.0

//! The header of a safetensors file. It comes from who knows where: nothing in it is
//! believed.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Problem;

/// The header's length stands before it in so many bytes, little end first.
pub(super) const PREFIX: u64 = 8;

/// The longest header, bytes: the format's own limit.
pub(super) const MOST: u64 = 100_000_000;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dtype {
    /// Its name in the file, such as `BF16`.
    pub name: &'static str,
    /// The size of an element, bits.
    pub bits: u32,
}

impl Dtype {
    /// What is known, by name.
    const ALL: [Dtype; 20] = [
        Dtype::new("BOOL", 8),
        Dtype::new("F4", 4),
        Dtype::new("F6_E2M3", 6),
        Dtype::new("F6_E3M2", 6),
        Dtype::new("U8", 8),
        Dtype::new("I8", 8),
        Dtype::new("F8_E5M2", 8),
        Dtype::new("F8_E4M3", 8),
        Dtype::new("F8_E8M0", 8),
        Dtype::new("I16", 16),
        Dtype::new("U16", 16),
        Dtype::new("F16", 16),
        Dtype::new("BF16", 16),
        Dtype::new("I32", 32),
        Dtype::new("U32", 32),
        Dtype::new("F32", 32),
        Dtype::new("C64", 64),
        Dtype::new("F64", 64),
        Dtype::new("I64", 64),
        Dtype::new("U64", 64),
    ];

    const fn new(name: &'static str, bits: u32) -> Self {
        Dtype { name, bits }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name == name)
    }

    /// What a tensor's address is to be a multiple of, bytes.
    pub fn align(self) -> u64 {
        u64::from(self.bits.div_ceil(8)).next_power_of_two()
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape; none of a scalar.
    pub shape: Vec<u64>,
    /// Where its data lies in the file, bytes. Empty if it has no elements.
    pub range: Range<u64>,
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Its tensors, in the order of their data.
    pub tensors: Vec<Tensor>,
    /// Free text by name (`__metadata__`).
    pub metadata: BTreeMap<String, String>,
}

/// How long the header is, as the file says, if it can be.
pub(super) fn length(prefix: [u8; PREFIX as usize], file_bytes: u64) -> Result<u64, Problem> {
    let length = u64::from_le_bytes(prefix);
    if length > MOST {
        return Err(Problem::LongHeader(length));
    }
    if length > file_bytes.saturating_sub(PREFIX) {
        return Err(Problem::CutHeader {
            length,
            file: file_bytes,
        });
    }
    Ok(length)
}

impl Header {
    /// Reads the header's text, in a file of `file_bytes` bytes.
    ///
    /// Every byte of the file after the header belongs to one tensor exactly, as the format
    /// has it; so nothing can be hidden in between.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &[u8], file_bytes: u64) -> Result<Self, Problem> {
        if text.first() != Some(&b'{') {
            return Err(Problem::NoObject);
        }
        let Listed { entries, metadata } =
            serde_json::from_slice(text).map_err(|error| Problem::NotJson(error.to_string()))?;
        let start = PREFIX + text.len() as u64;
        let cut = Problem::CutHeader {
            length: text.len() as u64,
            file: file_bytes,
        };
        let data = file_bytes.checked_sub(start).ok_or(cut)?;
        let mut tensors = entries
            .into_iter()
            .map(|(name, entry)| entry.check(name, start, data))
            .collect::<Result<Vec<Tensor>, Problem>>()?;
        tensors.sort_by(|a, b| {
            let key = |tensor: &Tensor| (tensor.range.start, tensor.range.end);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
        let mut end = start;
        for (index, tensor) in tensors.iter().enumerate() {
            let at = tensor.range.start;
            if at < end {
                return Err(Problem::Overlap {
                    name: tensor.name.clone(),
                    // The one before ends after this one begins.
                    other: tensors[index.saturating_sub(1)].name.clone(),
                });
            }
            if at > end {
                return Err(Problem::Hole {
                    offset: end,
                    bytes: at - end,
                });
            }
            end = tensor.range.end;
        }
        if end < file_bytes {
            return Err(Problem::Hole {
                offset: end,
                bytes: file_bytes - end,
            });
        }
        Ok(Header { tensors, metadata })
    }
}

/// A tensor as the header has it.
#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// `start` is where the file's data begins, `data` how much of it there is.
    fn check(self, name: String, start: u64, data: u64) -> Result<Tensor, Problem> {
        let [begin, end] = self.data_offsets;
        if begin > end {
            return Err(Problem::Backwards { name, begin, end });
        }
        if end > data {
            return Err(Problem::CutData { name, end, data });
        }
        let Some(dtype) = Dtype::named(&self.dtype) else {
            return Err(Problem::UnknownDtype {
                name,
                dtype: self.dtype,
            });
        };
        let bits = self
            .shape
            .iter()
            .try_fold(u64::from(dtype.bits), |bits, side| bits.checked_mul(*side));
        match bits {
            Some(bits) if bits.is_multiple_of(8) && bits / 8 == end - begin => Ok(Tensor {
                name,
                dtype,
                shape: self.shape,
                range: start + begin..start + end,
            }),
            _ => Err(Problem::WrongSize {
                name,
                dtype,
                shape: self.shape,
                bytes: end - begin,
            }),
        }
    }
}

/// What the header lists.
struct Listed {
    entries: Vec<(String, Entry)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ListedVisitor)
    }
}

struct ListedVisitor;

impl<'de> Visitor<'de> for ListedVisitor {
    type Value = Listed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors by name")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Listed, M::Error> {
        let mut seen = HashSet::new();
        let mut entries = Vec::new();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                if metadata.replace(map.next_value()?).is_some() {
                    return Err(M::Error::custom("__metadata__ is there twice"));
                }
                continue;
            }
            if !seen.insert(name.clone()) {
                return Err(M::Error::custom(format_args!(
                    "tensor {} is there twice",
                    super::quoted(&name)
                )));
            }
            entries.push((name, map.next_value()?));
        }
        Ok(Listed {
            entries,
            metadata: metadata.unwrap_or_default(),
        })
    }
}
