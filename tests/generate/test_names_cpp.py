"""Names in C++ texts: none hides another of a scope around it, however deep, and whichever came first."""

from autokernel.generate.text_cpp import Names


def test_a_name_of_the_function_is_not_used_two_scopes_below():
    function = Names()
    pointer = function.fresh("clamp")
    inner = Names(Names(function))
    assert inner.fresh("clamp") != pointer


def test_a_name_used_two_scopes_below_is_not_given_out_above_it_later():
    function = Names()
    inner = Names(Names(function))
    value = inner.fresh("clamp")
    assert function.fresh("clamp") != value


def test_siblings_share_names():
    nest = Names(Names())
    assert Names(nest).fresh("mul") == Names(nest).fresh("mul") == "mul"
