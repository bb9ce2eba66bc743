// Command lines of the form --name value.
#ifndef REDLEASE_TESTS_SOAK_ARGUMENTS_HPP
#define REDLEASE_TESTS_SOAK_ARGUMENTS_HPP

#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace redlease::soak {

class Arguments {
 public:
  // `values` are the names, each with its default. Throws std::invalid_argument.
  Arguments(int argc, char** argv, std::map<std::string, std::string> values)
      : values_(std::move(values)) {
    for (int i = 1; i < argc; i += 2) {
      const std::string_view name = argv[i];
      const auto found =
          name.starts_with("--") ? values_.find(std::string{name.substr(2)}) : values_.end();
      if (found == values_.end()) throw std::invalid_argument("what is " + std::string{name} + "?");
      if (i + 1 == argc) throw std::invalid_argument(std::string{name} + " needs a value");
      found->second = argv[i + 1];
    }
  }

  const std::string& text(const std::string& name) const { return values_.at(name); }
  unsigned long number(const std::string& name) const {
    return parse<unsigned long>(
        name, [](const std::string& t, std::size_t* end) { return std::stoul(t, end); });
  }
  double real(const std::string& name) const {
    return parse<double>(name,
                         [](const std::string& t, std::size_t* end) { return std::stod(t, end); });
  }

 private:
  template <class Number, class Fn>
  Number parse(const std::string& name, Fn&& fn) const {
    const auto& value = text(name);
    std::size_t end = 0;
    try {
      const Number number = fn(value, &end);
      if (end == value.size() && !(number < 0)) return number;
    } catch (const std::logic_error&) {
    }
    throw std::invalid_argument("--" + name + ": not a number: " + value);
  }

  std::map<std::string, std::string> values_;
};

}  // namespace redlease::soak

#endif
