import contraport


def test_a_lazy_name_is_the_same_each_time_it_is_asked_for():
    first = {name: getattr(contraport, name) for name in contraport._LAZY}
    assert all(callable(value) for value in first.values())
    assert {name: getattr(contraport, name) for name in contraport._LAZY} == first
