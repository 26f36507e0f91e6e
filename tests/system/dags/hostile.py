"""Templates that would use all time or memory of the process that renders them."""

HOSTILE = {
    "nested_loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}gpu",
    "long_text": "{{ 'x' * 3000000000 }}",
    "large_number": "{{ 7 ** (9 ** 9) }}",
    "list_that_doubles": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = n.x * 2 %}{% endfor %}",
    "wide_field": "{{ '%9999999999d' % 1 }}",
    "endless_macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "long_output": "{{ 'gpu,' * 1000000 }}",
    "filter_of_a_long_text": "{{ ('<' * 3000000) | striptags }}",
    "endless_filler": "{{ lipsum(n=1000000000) }}",
    "deep_brackets": "{{" + "(" * 100_000 + ")" * 100_000 + "}}",
    "long_sum": "{{ " + "1+" * 100_000 + "1 }}",
    "batch_without_end": "{{ [1] | batch(1000000000, 'x') | list }}",
}
