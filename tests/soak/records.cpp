#include "soak/records.hpp"

#include <algorithm>
#include <istream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace redlease::soak {
namespace {

class Words {
 public:
  explicit Words(const std::string& kind) { text_ << kind; }

  Words& add(const char* name, const std::string& value) {
    text_ << ' ' << name << '=' << value;
    return *this;
  }
  Words& add(const char* name, long value) { return add(name, std::to_string(value)); }
  Words& add(const char* name, nanoseconds value) { return add(name, long{value.count()}); }
  Words& add(const char* name, Instant value) { return add(name, value.time_since_epoch()); }
  Words& add(const char* name, const std::optional<Instant>& value) {
    return value ? add(name, *value) : *this;
  }

  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

using Fields = std::map<std::string, std::string>;

Fields fields_of(std::istream& words) {
  Fields fields;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) throw std::runtime_error("not name=value: " + word);
    fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return fields;
}

nanoseconds span(const Fields& fields, const char* name) {
  return nanoseconds{std::stoll(fields.at(name))};
}
Instant instant(const Fields& fields, const char* name) { return Instant{span(fields, name)}; }
std::optional<Instant> maybe(const Fields& fields, const char* name) {
  return fields.contains(name) ? std::optional{instant(fields, name)} : std::nullopt;
}
bool flag(const Fields& fields, const char* name) { return fields.at(name) != "0"; }

std::string to_text(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

// "counter@number,counter@number"
std::string to_text(const std::vector<Number>& numbers) {
  std::vector<std::string> words;
  words.reserve(numbers.size());
  for (const auto& [counter, value] : numbers) {
    words.push_back(counter + '@' + std::to_string(value));
  }
  return to_text(words);
}

std::vector<Number> numbers_in(const std::string& text) {
  std::vector<Number> numbers;
  for (const auto& word : words_in(text)) {
    const auto at = word.rfind('@');
    if (at == std::string::npos) throw std::runtime_error("not counter@number: " + word);
    numbers.push_back({word.substr(0, at), std::stoll(word.substr(at + 1))});
  }
  return numbers;
}

// "seen:end,seen:end,"
std::string to_text(const std::vector<Validity>& all) {
  std::string text;
  for (const auto& [seen, end] : all) {
    text += std::to_string(seen.time_since_epoch().count()) + ':' +
            std::to_string(end.time_since_epoch().count()) + ',';
  }
  return text;
}

std::vector<Validity> validities(const std::string& text) {
  std::vector<Validity> all;
  std::istringstream numbers(text);
  nanoseconds::rep seen = 0;
  nanoseconds::rep end = 0;
  for (char colon = 0, comma = 0; numbers >> seen >> colon >> end >> comma;) {
    all.push_back({Instant{nanoseconds{seen}}, Instant{nanoseconds{end}}});
  }
  return all;
}

LeaseRecord lease_from(const Fields& fields) {
  return {.keys = words_in(fields.at("keys")),
          .numbers = numbers_in(fields.at("numbers")),
          .token = fields.at("token"),
          .auto_renew = flag(fields, "auto"),
          .renewed_by_hand = flag(fields, "by_hand"),
          .ttl = span(fields, "ttl"),
          .margin = span(fields, "margin"),
          .began = instant(fields, "began"),
          .acquired = instant(fields, "acquired"),
          .last_held = instant(fields, "last_held"),
          .valid_first = instant(fields, "valid_first"),
          .valid_last = instant(fields, "valid_last"),
          .validities = validities(fields.at("validities")),
          .listening = maybe(fields, "listening"),
          .signalled = maybe(fields, "signalled"),
          .held_late = maybe(fields, "held_late"),
          .releasing = maybe(fields, "releasing"),
          .answered = maybe(fields, "answered"),
          .destroyed = maybe(fields, "destroyed"),
          .revived = flag(fields, "revived"),
          .loss = fields.at("loss"),
          .end = fields.at("end")};
}

// Its end takes the place of its beginning, which is not far above.
void add_lease(LeaseRecord&& lease, HolderLog& log) {
  const auto same = std::find_if(
      log.leases.rbegin(), log.leases.rend(),
      [&](const LeaseRecord& other) { return other.end == "open" && other.token == lease.token; });
  if (same == log.leases.rend()) {
    log.leases.push_back(std::move(lease));
  } else {
    *same = std::move(lease);
  }
}

void read_line(const std::string& line, HolderLog& log) {
  std::istringstream words(line);
  std::string kind;
  words >> kind;
  if (kind == "error") {
    log.errors.push_back(line);
    return;
  }
  if (kind == "count") {
    long count = 0;
    std::string name;
    words >> count >> std::ws;
    std::getline(words, name);
    log.counts[name] += count;
    return;
  }
  const auto fields = fields_of(words);
  if (kind == "lease") {
    add_lease(lease_from(fields), log);
  } else if (kind == "regressed") {
    log.regressions.push_back(
        {instant(fields, "began"), instant(fields, "at"), words_in(fields.at("counters"))});
  } else if (kind == "late") {
    log.late.push_back({instant(fields, "due"), instant(fields, "woke")});
  } else if (kind == "leftovers") {
    log.leftovers = {std::stol(fields.at("threads")), std::stol(fields.at("fds"))};
  } else {
    throw std::runtime_error("no such record: " + kind);
  }
}

}  // namespace

std::string to_line(const LeaseRecord& lease) {
  return Words{"lease"}
      .add("keys", to_text(lease.keys))
      .add("numbers", to_text(lease.numbers))
      .add("token", lease.token)
      .add("auto", long{lease.auto_renew})
      .add("by_hand", long{lease.renewed_by_hand})
      .add("ttl", lease.ttl)
      .add("margin", lease.margin)
      .add("began", lease.began)
      .add("acquired", lease.acquired)
      .add("last_held", lease.last_held)
      .add("valid_first", lease.valid_first)
      .add("valid_last", lease.valid_last)
      .add("validities", to_text(lease.validities))
      .add("listening", lease.listening)
      .add("signalled", lease.signalled)
      .add("held_late", lease.held_late)
      .add("releasing", lease.releasing)
      .add("answered", lease.answered)
      .add("destroyed", lease.destroyed)
      .add("revived", long{lease.revived})
      .add("loss", lease.loss)
      .add("end", lease.end)
      .text();
}

std::string to_line(const Regression& regression) {
  return Words{"regressed"}
      .add("began", regression.began)
      .add("at", regression.at)
      .add("counters", to_text(regression.counters))
      .text();
}

std::string to_line(const Late& late) {
  return Words{"late"}.add("due", late.due).add("woke", late.woke).text();
}

std::string to_line(const Leftovers& leftovers) {
  return Words{"leftovers"}.add("threads", leftovers.threads).add("fds", leftovers.fds).text();
}

std::string count_line(const std::string& name, long count) {
  return "count " + std::to_string(count) + ' ' + name;
}

std::string error_line(const std::string& what) { return "error " + what; }

HolderLog read_log(const std::string& name, std::istream& lines, bool killed) {
  HolderLog log;
  log.name = name;
  log.killed = killed;
  for (std::string line; std::getline(lines, line);) {
    if (killed && lines.eof()) break;  // it has no end
    try {
      read_line(line, log);
    } catch (const std::exception& error) {
      throw std::runtime_error(name + ": " + error.what() + " in: " + line);
    }
  }
  return log;
}

}  // namespace redlease::soak
