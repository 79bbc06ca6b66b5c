//! Words that are not names of columns or functions unless quoted (`src/include/parser/kwlist.h`, versions 14 to 18).

/// Words that are never names.
const RESERVED: &str = " \
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create \
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc \
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral \
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning \
    select session_user some symmetric system_user table then to trailing true union unique user using variadic when \
    where window with ";

/// Words that are names of functions and types, not of columns.
const FUNCTIONS_ONLY: &str = " \
    authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left \
    like natural notnull outer overlaps right similar tablesample verbose ";

/// Words that are names of columns, not of functions: most of them start a construct of their own.
const COLUMNS_ONLY: &str = " \
    between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int \
    integer interval json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar \
    json_serialize json_table json_value least merge_action national nchar none normalize nullif numeric out overlay \
    position precision real row setof smallint substring time timestamp treat trim values varchar xmlattributes \
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable ";

fn is_in(list: &str, word: &str) -> bool {
    let mut rest = list;
    while let Some(at) = rest.find(word) {
        let bytes = rest.as_bytes();
        if at > 0 && bytes[at - 1] == b' ' && bytes.get(at + word.len()) == Some(&b' ') {
            return true;
        }
        rest = &rest[at + word.len()..];
    }
    false
}

pub(crate) fn is_column_name(word: &str) -> bool {
    !is_in(RESERVED, word) && !is_in(FUNCTIONS_ONLY, word)
}

pub(crate) fn is_function_name(word: &str) -> bool {
    !is_in(RESERVED, word) && !is_in(COLUMNS_ONLY, word)
}
