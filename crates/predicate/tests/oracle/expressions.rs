//! Random expressions, most of them of matching types.

use fastrand::Rng;

/// Name, SQL name and object id of a type; a name is the prefix of its columns.
pub(crate) const TYPES: [(&str, &str, u32); 22] = [
    ("bool", "boolean", 16),
    ("int2", "smallint", 21),
    ("int4", "integer", 23),
    ("int8", "bigint", 20),
    ("float4", "real", 700),
    ("float8", "double precision", 701),
    ("numeric", "numeric", 1700),
    ("text", "text", 25),
    ("varchar", "varchar(12)", 1043),
    ("bpchar", "char(6)", 1042),
    ("name", "name", 19),
    ("uuid", "uuid", 2950),
    ("date", "date", 1082),
    ("time", "time", 1083),
    ("timestamp", "timestamp", 1114),
    ("timestamptz", "timestamptz", 1184),
    ("interval", "interval", 1186),
    ("int4s", "integer[]", 1007),
    ("int8s", "bigint[]", 1016),
    ("texts", "text[]", 1009),
    ("numerics", "numeric[]", 1231),
    ("bools", "boolean[]", 1000),
];

const SPECIAL: [(&str, &[&str]); 22] = [
    ("bool", &["true", "false", "t", "no", "1"]),
    ("int2", &["0", "1", "-1", "2", "7", "32767", "-32768", " 12 "]),
    ("int4", &["0", "1", "-1", "2", "7", "40000", "2147483647", "-2147483648"]),
    ("int8", &["0", "1", "-1", "3", "5000000000", "9223372036854775807", "-9223372036854775808"]),
    (
        "float4",
        &[
            "0",
            "-0",
            "1.5",
            "0.1",
            "3.4e38",
            "1e-45",
            "NaN",
            "Infinity",
            "-Infinity",
            "16777217",
            "1e20",
            "100000",
            "1e6",
        ],
    ),
    (
        "float8",
        &[
            "0",
            "-0",
            "1.5",
            "0.1",
            "1e308",
            "5e-324",
            "NaN",
            "Infinity",
            "-Infinity",
            "1e15",
            "123456789012345680",
            "1e-5",
            "2.5",
            "0.3",
        ],
    ),
    (
        "numeric",
        &[
            "0",
            "0.00",
            "1",
            "1.0",
            "1.50",
            "-2.5",
            "0.1",
            "NaN",
            "100",
            "12345678901234567890.123456789",
            "0.000001",
            "1e20",
            "-7",
            "3",
            "1e-10",
        ],
    ),
    (
        "text",
        &[
            "", "a", "b", "A", "abc", "a%", "a_c", "a\\b", "ä", "z ", " z", "a\nb", "1", "12", "true", "日本", "null",
            "a,b",
        ],
    ),
    ("varchar", &["", "a", "B", "abc", "ab ", "ä", "7"]),
    ("bpchar", &["", "a", "a ", "abc", "ABC", "ä", "7"]),
    ("name", &["", "a", "abc", "B"]),
    (
        "uuid",
        &[
            "00000000-0000-0000-0000-000000000000",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "{A0EEBC999C0B4EF8BB6D6BB9BD380A12}",
        ],
    ),
    (
        "date",
        &[
            "2000-01-01",
            "2020-02-29",
            "1999-12-31",
            "0044-03-15 BC",
            "infinity",
            "-infinity",
            "5874897-12-31",
            "4713-11-24 BC",
            "1970-01-01",
        ],
    ),
    ("time", &["00:00:00", "12:34:56", "23:59:59.999999", "24:00:00", "01:02", "04:05:06.5"]),
    (
        "timestamp",
        &[
            "2000-01-01 00:00:00",
            "2020-02-29 12:34:56.789",
            "infinity",
            "-infinity",
            "0044-03-15 01:02:03 BC",
            "294276-12-31 23:59:59.999999",
            "1999-12-31T23:59:59",
        ],
    ),
    (
        "timestamptz",
        &[
            "2000-01-01 00:00:00+00",
            "2020-02-29 12:34:56.789-03:30",
            "infinity",
            "-infinity",
            "1999-12-31 23:59:59Z",
            "2000-01-01 02:00:00+02",
        ],
    ),
    (
        "interval",
        &[
            "0",
            "1 day",
            "24:00:00",
            "1 mon",
            "30 days",
            "-1 day",
            "1 year 2 mons 3 days 04:05:06.7",
            "PT1H",
            "P1M2DT-3H",
            "-1 mons +30 days",
            "1 hour ago",
        ],
    ),
    ("int4s", &["{}", "{1}", "{1,2,3}", "{NULL}", "{1,NULL}", "{{1,2},{3,4}}", "[2:3]={1,2}", "{7,7}"]),
    ("int8s", &["{}", "{1}", "{1,2,3}", "{NULL,5000000000}", "{{1},{2}}"]),
    ("texts", &["{}", "{a}", "{a,b}", "{\"a b\",NULL}", "{\"\"}", "{{a,b},{c,d}}", "{\"null\",\"a,b\"}"]),
    ("numerics", &["{}", "{1.0}", "{1,2.50}", "{NaN,NULL}"]),
    ("bools", &["{}", "{t}", "{t,f}", "{NULL}"]),
];

/// The text of a random value.
pub(crate) fn literal(random: &mut Rng, name: &str) -> String {
    let (_, texts) = SPECIAL.iter().find(|(known, _)| *known == name).unwrap();
    match name {
        "int2" | "int4" | "int8" if random.bool() => random.i32(-5..20).to_string(),
        "float4" | "float8" | "numeric" if random.bool() => format!("{}.{}", random.i32(-5..20), random.u8(..100)),
        "date" if random.bool() => {
            format!("{:04}-{:02}-{:02}", random.u32(1990..2030), random.u8(1..13), random.u8(1..29))
        }
        "timestamp" | "timestamptz" if random.bool() => {
            format!(
                "{:04}-{:02}-{:02} {:02}:{:02}:00",
                random.u32(1990..2030),
                random.u8(1..13),
                random.u8(1..29),
                random.u8(..24),
                random.u8(..60)
            )
        }
        "interval" if random.bool() => {
            format!("{} mons {} days {:02}:00:00", random.i8(-20..20), random.i8(-40..40), random.u8(..100))
        }
        _ => random.choice(texts.iter()).unwrap().to_string(),
    }
}

/// An expression whose parts can be replaced by others of their type.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    name: &'static str,
    /// Text that has `§` for each part.
    template: String,
    parts: Vec<Self>,
}

impl Expression {
    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        let mut parts = self.parts.iter();
        for letter in self.template.chars() {
            match letter {
                '§' => out.push_str(&parts.next().unwrap().text()),
                other => out.push(other),
            }
        }
        out
    }

    /// Smaller expressions of the same type.
    pub(crate) fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        self.descendants(self.name, &mut all);
        if !self.parts.is_empty() {
            all.push(Self { name: self.name, template: format!("NULL::{}", sql(self.name)), parts: Vec::new() });
        }
        for (at, part) in self.parts.iter().enumerate() {
            for smaller in part.smaller() {
                let mut copy = self.clone();
                copy.parts[at] = smaller;
                all.push(copy);
            }
        }
        all
    }

    fn descendants(&self, name: &str, all: &mut Vec<Self>) {
        for part in &self.parts {
            if part.name == name {
                all.push(part.clone());
            }
            part.descendants(name, all);
        }
    }
}

fn sql(name: &str) -> &'static str {
    TYPES.iter().find(|(known, ..)| *known == name).unwrap().1
}

pub(crate) struct Generator {
    random: Rng,
}

/// Templates of operators and functions: the result's type, the text, the types of the parts.
const TEMPLATES: [(&str, &str, &[&str]); 112] = [
    ("bool", "(§ AND §)", &["bool", "bool"]),
    ("bool", "(§ OR §)", &["bool", "bool"]),
    ("bool", "(NOT §)", &["bool"]),
    ("bool", "(§ IS UNKNOWN)", &["bool"]),
    ("bool", "(§ IS NOT TRUE)", &["bool"]),
    ("bool", "(§ IS FALSE)", &["bool"]),
    ("bool", "§ AND NOT § OR §", &["bool", "bool", "bool"]),
    ("bool", "§ = § IS NOT NULL", &["bool", "bool"]),
    ("bool", "(§ LIKE §)", &["text", "text"]),
    ("bool", "(§ NOT LIKE §)", &["varchar", "text"]),
    ("bool", "(§ LIKE § ESCAPE '#')", &["text", "text"]),
    ("bool", "(§ ILIKE §)", &["text", "text"]),
    ("bool", "(§ ~~* §)", &["bpchar", "text"]),
    ("bool", "(§ LIKE '%a_%')", &["text"]),
    ("bool", "(§ NOT ILIKE 'A%')", &["name"]),
    ("bool", "(§ ^@ §)", &["text", "text"]),
    ("bool", "starts_with(§, §)", &["text", "varchar"]),
    ("bool", "(§ @> §)", &["int4s", "int4s"]),
    ("bool", "(§ <@ §)", &["texts", "texts"]),
    ("bool", "(§ && §)", &["int8s", "int8s"]),
    ("bool", "(§ @> '{1}')", &["numerics"]),
    ("bool", "(§ = ANY (§))", &["int4", "int4s"]),
    ("bool", "(§ <> ALL (§))", &["int8", "int8s"]),
    ("bool", "(§ < ANY (§))", &["int2", "int8s"]),
    ("bool", "(§ = ANY ('{1,2,NULL}'))", &["int4"]),
    ("bool", "(§ >= ALL ('{0.5,1}'))", &["float8"]),
    ("bool", "(§ = SOME (ARRAY[§, §]))", &["numeric", "int4", "numeric"]),
    ("bool", "(§ LIKE ANY (§))", &["text", "texts"]),
    ("bool", "(§ = ANY (§))", &["varchar", "texts"]),
    ("bool", "(§ IN (1, 2, NULL))", &["int8"]),
    ("bool", "(§ IN (§, §))", &["int4", "int4", "int8"]),
    ("bool", "(§ NOT IN (§, 1.5, §))", &["float8", "int4", "float4"]),
    ("bool", "(§ IN ('a', 'b'))", &["bpchar"]),
    ("bool", "(§ IN ('a'))", &["varchar"]),
    ("bool", "(§ NOT IN ('2000-01-01', §))", &["date", "timestamp"]),
    ("bool", "(§ BETWEEN § AND §)", &["int4", "int8", "numeric"]),
    ("bool", "(§ NOT BETWEEN § AND §)", &["text", "text", "varchar"]),
    ("bool", "(§ BETWEEN SYMMETRIC § AND §)", &["timestamp", "date", "timestamptz"]),
    ("bool", "§ BETWEEN 1 AND 5 = §", &["int4", "bool"]),
    ("bool", "(§)::bool", &["int4"]),
    ("bool", "(§)::bool", &["text"]),
    ("bool", "(§)[1]", &["bools"]),
    ("int4", "(§)::int4", &["bool"]),
    ("int4", "(§ + §)", &["int4", "int2"]),
    ("int4", "(§ - §)", &["int4", "int4"]),
    ("int4", "§ * 2 + §", &["int4", "int4"]),
    ("int4", "(§ / §)", &["int4", "int4"]),
    ("int4", "(§ % §)", &["int4", "int4"]),
    ("int4", "(- §)", &["int4"]),
    ("int4", "(@ §)", &["int4"]),
    ("int4", "(§ & §)", &["int4", "int4"]),
    ("int4", "(§ | § # 3)", &["int4", "int4"]),
    ("int4", "(~ §)", &["int4"]),
    ("int4", "(§ << 3)", &["int4"]),
    ("int4", "(§ >> 1)", &["int4"]),
    ("int4", "(§)::int4", &["numeric"]),
    ("int4", "(§)::int", &["float8"]),
    ("int4", "length(§)", &["text"]),
    ("int4", "char_length(§)", &["bpchar"]),
    ("int4", "cardinality(§)", &["int4s"]),
    ("int4", "array_ndims(§)", &["texts"]),
    ("int4", "array_length(§, 1)", &["int4s"]),
    ("int4", "(§)[§]", &["int4s", "int4"]),
    ("int4", "(§ - §)", &["date", "date"]),
    ("int4", "strpos(§, §)", &["text", "text"]),
    ("int2", "(§)::int2", &["int4"]),
    ("int2", "(§ * §)", &["int2", "int2"]),
    ("int2", "(§ << 2)", &["int2"]),
    ("int8", "(§ + §)", &["int8", "int4"]),
    ("int8", "(§ * §)", &["int8", "int2"]),
    ("int8", "(§)::int8", &["float4"]),
    ("int8", "abs(§)", &["int8"]),
    ("int8", "mod(§, §)", &["int8", "int4"]),
    ("float8", "(§ + §)", &["float8", "float4"]),
    ("float8", "(§ * §)", &["float8", "float8"]),
    ("float8", "(§ / §)", &["float8", "int4"]),
    ("float8", "(|/ §)", &["float8"]),
    ("float8", "(§)::float8", &["numeric"]),
    ("float4", "(§ * §)", &["float4", "float4"]),
    ("float4", "(§ - §)", &["float4", "float4"]),
    ("float4", "(§)::float4", &["float8"]),
    ("numeric", "(§ + §)", &["numeric", "int4"]),
    ("numeric", "(§ - 0.10)", &["numeric"]),
    ("numeric", "(§ * §)", &["numeric", "numeric"]),
    ("numeric", "(§ / §)", &["numeric", "numeric"]),
    ("numeric", "(§ % §)", &["numeric", "int8"]),
    ("numeric", "(§)::numeric(10,2)", &["numeric"]),
    ("numeric", "(§)::numeric", &["float8"]),
    ("numeric", "abs(§)", &["numeric"]),
    ("text", "(§ || §)", &["text", "varchar"]),
    ("text", "(§ || §)", &["text", "int4"]),
    ("text", "(§ || §)", &["numeric", "text"]),
    ("text", "lower(§)", &["text"]),
    ("text", "upper(§)", &["varchar"]),
    ("text", "concat(§, §, 'x')", &["bool", "float8"]),
    ("text", "concat(§, §)", &["timestamp", "int4s"]),
    ("text", "(§)::text", &["numeric"]),
    ("text", "(§)::text", &["float4"]),
    ("text", "(§)::text", &["bpchar"]),
    ("text", "(§)::text", &["timestamptz"]),
    ("text", "(§)::text", &["date"]),
    ("text", "(§)::text", &["texts"]),
    ("text", "btrim(§)", &["text"]),
    ("text", "(§)[2]", &["texts"]),
    ("varchar", "(§)::varchar(2)", &["text"]),
    ("bpchar", "(§)::char(3)", &["text"]),
    ("uuid", "(§)::text::uuid", &["uuid"]),
    ("date", "(§ + §)", &["date", "int4"]),
    ("date", "(§)::date", &["timestamptz"]),
    ("time", "(§)::time", &["timestamp"]),
    ("time", "(§ + §)", &["time", "interval"]),
    ("timestamp", "(§ + §)", &["timestamp", "interval"]),
];

const MORE_TEMPLATES: [(&str, &str, &[&str]); 28] = [
    ("timestamp", "(§ - §)", &["date", "interval"]),
    ("timestamp", "(§ + §)", &["date", "time"]),
    ("timestamp", "(§ AT TIME ZONE 'UTC')", &["timestamptz"]),
    ("timestamptz", "(§ AT TIME ZONE 'UTC')", &["timestamp"]),
    ("timestamptz", "(§ AT TIME ZONE '02:00'::interval)", &["timestamp"]),
    ("timestamptz", "(§ - §)", &["timestamptz", "interval"]),
    ("timestamptz", "(§)::timestamptz", &["date"]),
    ("interval", "(§ - §)", &["timestamp", "timestamp"]),
    ("interval", "(§ + §)", &["interval", "interval"]),
    ("interval", "(§ - §)", &["interval", "interval"]),
    ("interval", "(- §)", &["interval"]),
    ("interval", "(§ - §)", &["time", "time"]),
    ("interval", "justify_days(§)", &["interval"]),
    ("interval", "justify_hours(§)", &["interval"]),
    ("interval", "justify_interval(§)", &["interval"]),
    ("int4s", "(§ || §)", &["int4s", "int4s"]),
    ("int4s", "(§ || §)", &["int4s", "int4"]),
    ("int4s", "array_prepend(§, §)", &["int4", "int4s"]),
    ("int4s", "(§)[§:§]", &["int4s", "int4", "int4"]),
    ("int4s", "ARRAY[§, §]", &["int4", "int4"]),
    ("int4s", "ARRAY[§, §]", &["int4s", "int4s"]),
    ("int8s", "(§)::int8[]", &["int4s"]),
    ("int8s", "(§ || §)", &["int8s", "int4"]),
    ("texts", "array_append(§, §)", &["texts", "text"]),
    ("texts", "(§)[2:]", &["texts"]),
    ("texts", "(§)::text[]", &["int4s"]),
    ("numerics", "ARRAY[§, §]", &["int4", "numeric"]),
    ("bool", "(§ = §) IN (§, true)", &["text", "name", "bool"]),
];

/// Operators of the random mix of types, among which Postgres has to choose or to refuse.
const MIXED: [&str; 14] = ["=", "<>", "<", ">=", "+", "-", "*", "/", "||", "@>", "LIKE", "IS DISTINCT FROM", "&&", "%"];

impl Generator {
    pub(crate) fn new(random: Rng) -> Self {
        Self { random }
    }

    pub(crate) fn predicate(&mut self) -> Expression {
        match self.random.u8(..12) {
            0..=1 => self.mixed(),
            2 => self.any_cast(),
            3 => self.any_call(),
            _ => {
                let depth = self.random.usize(1..5);
                self.expression("bool", depth)
            }
        }
    }

    fn any_type(&mut self) -> &'static str {
        TYPES[self.random.usize(..TYPES.len())].0
    }

    fn part(name: &'static str, template: String, parts: Vec<Expression>) -> Expression {
        Expression { name, template, parts }
    }

    /// A column or a literal, in one of its spellings.
    fn leaf(&mut self, name: &'static str) -> Expression {
        let text = literal(&mut self.random, name).replace('\'', "''").replace('§', "x");
        let template = match self.random.u8(..12) {
            0..=5 => format!("{name}_{}", if self.random.bool() { "a" } else { "b" }),
            6 => "NULL".to_owned(),
            7 => format!("'{text}'"),
            8 => format!("CAST('{text}' AS {})", sql(name)),
            9 if ["int2", "int4", "int8", "numeric"].contains(&name) && !text.contains('N') => text.trim().to_owned(),
            10 if ["date", "uuid", "timestamptz", "text", "numeric"].contains(&name) => format!("{name} '{text}'"),
            _ => format!("'{text}'::{}", sql(name)),
        };
        let template = if template.starts_with('-') { format!("({template})") } else { template };
        Self::part(name, template, Vec::new())
    }

    fn expression(&mut self, name: &'static str, depth: usize) -> Expression {
        if depth == 0 {
            return self.leaf(name);
        }
        match self.random.u8(..10) {
            0 if name != "bool" => self.leaf(name),
            1 if name != "bool" || self.random.bool() => self.generic(name, depth),
            2..=5 if name == "bool" => self.comparison(depth),
            _ => {
                let all: Vec<_> =
                    TEMPLATES.iter().chain(&MORE_TEMPLATES).filter(|(result, ..)| *result == name).collect();
                let Some((_, template, types)) = all.get(self.random.usize(..all.len().max(1))) else {
                    return self.leaf(name);
                };
                let parts = types.iter().map(|part| self.expression(part, depth - 1)).collect();
                Self::part(name, (*template).to_owned(), parts)
            }
        }
    }

    /// COALESCE and the like.
    fn generic(&mut self, name: &'static str, depth: usize) -> Expression {
        let template = ["COALESCE(§, §)", "GREATEST(§, §)", "LEAST(§, §)", "NULLIF(§, §)"][self.random.usize(..4)];
        let parts = vec![self.expression(name, depth - 1), self.expression(name, depth - 1)];
        Self::part(name, template.to_owned(), parts)
    }

    fn comparison(&mut self, depth: usize) -> Expression {
        const OPERATORS: [&str; 8] = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"];
        const NUMBERS: [&str; 6] = ["int2", "int4", "int8", "float4", "float8", "numeric"];
        const TEXTS: [&str; 4] = ["text", "varchar", "bpchar", "name"];
        const MOMENTS: [&str; 3] = ["date", "timestamp", "timestamptz"];
        let left = self.any_type();
        let family = [&NUMBERS[..], &TEXTS[..], &MOMENTS[..]].into_iter().find(|family| family.contains(&left));
        let right = match family {
            Some(family) if self.random.bool() => family[self.random.usize(..family.len())],
            _ => left,
        };
        if self.random.u8(..10) == 0 {
            let arg = self.expression(left, depth - 1);
            return Self::part(
                "bool",
                format!("(§ {})", if self.random.bool() { "IS NULL" } else { "NOTNULL" }),
                vec![arg],
            );
        }
        let operator = OPERATORS[self.random.usize(..OPERATORS.len())];
        let parts = vec![self.expression(left, depth - 1), self.expression(right, depth - 1)];
        Self::part("bool", format!("(§ {operator} §)"), parts)
    }

    /// Operands of any two types, compared with an operand of a third.
    fn mixed(&mut self) -> Expression {
        let operator = MIXED[self.random.usize(..MIXED.len())];
        let (left, right) = (self.any_type(), self.any_type());
        let parts = vec![self.expression(left, 1), self.expression(right, 0)];
        let inner = Self::part("bool", format!("(§ {operator} §)"), parts);
        if self.random.bool() {
            return inner;
        }
        let other = self.any_type();
        let parts = vec![inner, self.expression(other, 0)];
        Self::part("bool", format!("(§ {} §)", if self.random.bool() { "=" } else { "IS DISTINCT FROM" }), parts)
    }

    /// A cast between any two types.
    fn any_cast(&mut self) -> Expression {
        let (from, to) = (self.any_type(), self.any_type());
        let cast = self.expression(from, 0);
        let cast = Self::part(to, format!("(§)::{}", sql(to)), vec![cast]);
        let parts = vec![cast, self.expression(to, 0)];
        Self::part("bool", format!("(§ {} §)", if self.random.bool() { ">" } else { "IS NOT DISTINCT FROM" }), parts)
    }

    /// A function with arguments of any types, compared with a value of any type.
    fn any_call(&mut self) -> Expression {
        const CALLS: [&str; 20] = [
            "lower(§)",
            "length(§)",
            "abs(§)",
            "concat(§, §)",
            "array_append(§, §)",
            "array_prepend(§, §)",
            "array_cat(§, §)",
            "array_ndims(§)",
            "cardinality(§)",
            "mod(§, §)",
            "like(§, §)",
            "octet_length(§)",
            "rtrim(§, §)",
            "sign(§)",
            "date(§)",
            "justify_days(§)",
            "strpos(§, §)",
            "(§ IN (§, §))",
            "(§ = ANY (§))",
            "(§ BETWEEN § AND §)",
        ];
        let call = CALLS[self.random.usize(..CALLS.len())];
        let first = self.any_type();
        let count = call.matches('§').count();
        let mut parts: Vec<Expression> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = if self.random.bool() { first } else { self.any_type() };
            parts.push(self.expression(name, 0));
        }
        let name = self.any_type();
        let call = Self::part(name, call.to_owned(), parts);
        let parts = vec![call, self.expression(name, 0)];
        Self::part("bool", "(§ = §)".to_owned(), parts)
    }
}
