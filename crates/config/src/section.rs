//! Declaration of sections: documentation, type, default, range and reload class of each key.
//!
//! `section!` generates the checked struct with a field per key, the raw struct in which keys may be absent, and the list
//! of [`ConfigKey`]s. The list is used to detect unknown keys, to test the documentation, and to print `SHOW CONFIG`. A key
//! without default, documentation or reload class does not compile.

use super::raw::RawValue;
use super::setting::{ValueClass, ValueError};

/// Effect of a reload (`SIGHUP`, `RELOAD`) on a changed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reload {
    /// The new value is in force after the reload.
    Live,
    /// The old value stays in force until a restart.
    Restart,
}

/// Sections in which a key may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyScope {
    /// Only its own section.
    Process,
    /// Also in `[databases.NAME]` and `[users.NAME]`, which take precedence.
    Pool,
}

/// A key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKey {
    /// Name within its section.
    pub name: &'static str,
    /// Documentation.
    pub doc: &'static str,
    /// Effect of a reload.
    pub reload: Reload,
    /// Sections in which it may be set.
    pub scope: KeyScope,
    /// Class of its values.
    pub class: ValueClass,
}

/// A raw section, whose keys are set one by one.
pub(crate) trait RawSection {
    /// Keys of the section, in documentation order.
    fn keys(&self) -> Vec<&'static ConfigKey>;

    /// Sets a key; `None` if the section has no such key.
    fn set(&mut self, key: &str, value: &RawValue) -> Option<Result<(), ValueError>>;
}

/// A checked section.
pub(crate) trait ConfigSection: Default {
    type Raw: RawSection + Default;

    /// The defaults, overridden by the keys that are set.
    fn from_raw(raw: &Self::Raw) -> Self;

    /// Keys of the section, in documentation order.
    fn section_keys() -> &'static [ConfigKey];

    /// Values in the order of the keys, as `SHOW CONFIG` prints them.
    fn section_values(&self) -> Vec<String>;
}

macro_rules! read {
    ($value:expr) => {
        $crate::setting::Setting::read($value)
    };
    ($value:expr, $range:expr) => {
        $crate::setting::within($value, &$range)
    };
}
pub(crate) use read;

macro_rules! section {
    (
        $(#[$doc:meta])*
        pub struct $name:ident, raw $raw:ident {
            $($(#[doc = $key_doc:literal])+ $key:ident: $kind:ty = $default:expr
                $(, in $range:expr)? => $reload:ident $scope:ident;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $($(#[doc = $key_doc])+ pub $key: $kind,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $name {
            /// Keys of the section, in documentation order.
            pub const KEYS: &'static [$crate::ConfigKey] = &[$($crate::ConfigKey {
                name: stringify!($key),
                doc: concat!($($key_doc, "\n"),+),
                reload: $crate::Reload::$reload,
                scope: $crate::KeyScope::$scope,
                class: <$kind as $crate::setting::Setting>::CLASS,
            },)*];

            /// Restores the values that a reload cannot change.
            #[allow(dead_code, reason = "only sections of the process have such keys")]
            pub(crate) fn keep_restart_only(&mut self, old: &Self) {
                $(if $crate::Reload::$reload == $crate::Reload::Restart {
                    self.$key = old.$key.clone();
                })*
            }

            /// Values in the order of [`Self::KEYS`], as `SHOW CONFIG` prints them.
            pub fn shown_values(&self) -> Vec<String> {
                vec![$($crate::setting::Setting::show(&self.$key),)*]
            }
        }

        #[doc = concat!("[`", stringify!($name), "`] as written: a key that is absent leaves what was there before.")]
        #[derive(Debug, Clone, PartialEq, Default)]
        pub(crate) struct $raw { $(pub(crate) $key: Option<$kind>,)* }

        impl $raw {
            /// `base`, overridden by the keys that are set.
            pub(crate) fn over(&self, base: &$name) -> $name {
                $name { $($key: self.$key.clone().unwrap_or_else(|| base.$key.clone()),)* }
            }

            /// The keys that are set, with their values as `SHOW CONFIG` prints them.
            #[allow(dead_code, reason = "only sections below databases and users list what was written")]
            pub(crate) fn written(&self) -> Vec<(&'static str, String)> {
                let mut written = Vec::new();
                $(if let Some(value) = &self.$key {
                    written.push((stringify!($key), $crate::setting::Setting::show(value)));
                })*
                written
            }
        }

        impl $crate::section::ConfigSection for $name {
            type Raw = $raw;

            fn from_raw(raw: &$raw) -> Self {
                raw.over(&Self::default())
            }

            fn section_keys() -> &'static [$crate::ConfigKey] {
                Self::KEYS
            }

            fn section_values(&self) -> Vec<String> {
                self.shown_values()
            }
        }

        impl $crate::section::RawSection for $raw {
            fn keys(&self) -> Vec<&'static $crate::ConfigKey> {
                $name::KEYS.iter().collect()
            }

            fn set(&mut self, key: &str, value: &$crate::raw::RawValue)
                -> Option<Result<(), $crate::setting::ValueError>> {
                match key {
                    $(stringify!($key) => {
                        Some($crate::section::read!(value $(, $range)?).map(|read| self.$key = Some(read)))
                    })*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use section;
