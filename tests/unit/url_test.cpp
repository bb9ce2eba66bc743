#include <gtest/gtest.h>

#include <string>

#include <redlease/wire/url.hpp>

namespace {

using redlease::wire::parse_url;

std::string refusal(const std::string& url) {
  try {
    parse_url(url);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::string percent_encode(const std::string& text) {
  constexpr char hex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += {'%', hex[byte >> 4], hex[byte & 15]};
  }
  return out;
}

TEST(Url, HasDefaults) {
  const auto endpoint = parse_url("redis://localhost");
  EXPECT_EQ(endpoint.host, "localhost");
  EXPECT_EQ(endpoint.port, 6379);
  EXPECT_EQ(endpoint.database, 0);
  EXPECT_FALSE(endpoint.authenticate);
  EXPECT_EQ(parse_url("redis://localhost/").database, 0);
}

// B87
TEST(Url, TakesAllFormsOfUserInfo) {
  const auto both = parse_url("redis://user:pass@h:1/3");
  EXPECT_EQ(both.username, "user");
  EXPECT_EQ(both.password, "pass");
  EXPECT_EQ(both.port, 1);
  EXPECT_EQ(both.database, 3);
  const auto password = parse_url("redis://:pass@h");
  EXPECT_EQ(password.username, "");
  EXPECT_EQ(password.password, "pass");
  EXPECT_TRUE(password.authenticate);
  const auto user = parse_url("redis://user@h");
  EXPECT_EQ(user.username, "user");
  EXPECT_TRUE(user.authenticate);
  EXPECT_FALSE(parse_url("redis://@h").authenticate);
  EXPECT_FALSE(parse_url("redis://:@h").authenticate);
}

TEST(Url, DecodesPerCentSignsAndLeavesPlusAlone) {
  const std::string password = "p w@:/#%?+\xc3\xa9";
  EXPECT_EQ(parse_url("redis://:" + percent_encode(password) + "@h").password, password);
  EXPECT_EQ(parse_url("redis://:a+b%2Bc@h").password, "a+b+c");
}

TEST(Url, RoundTripsEveryByte) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto encoded = percent_encode(all);
  const auto endpoint = parse_url("redis://" + encoded + ":" + encoded + "@[::1]:6380/7");
  EXPECT_EQ(endpoint.username, all);
  EXPECT_EQ(endpoint.password, all);
  EXPECT_EQ(endpoint.host, "::1");
  EXPECT_EQ(endpoint.port, 6380);
  EXPECT_EQ(endpoint.database, 7);
}

TEST(Url, UserInfoEndsAtTheLastAt) {
  const auto endpoint = parse_url("redis://u:p@ss:w/o?r#d@host:6380/2");
  EXPECT_EQ(endpoint.username, "u");
  EXPECT_EQ(endpoint.password, "p@ss:w/o?r#d");
  EXPECT_EQ(endpoint.host, "host");
  EXPECT_EQ(endpoint.database, 2);
}

TEST(Url, TakesIpv6Literals) {
  const auto endpoint = parse_url("redis://u:p@[::1]:6379/3");
  EXPECT_EQ(endpoint.host, "::1");
  EXPECT_EQ(endpoint.address(), "[::1]:6379");
  EXPECT_EQ(parse_url("redis://[fe80::1]").host, "fe80::1");
}

TEST(Url, TakesUnixSockets) {
  const auto endpoint = parse_url("unix:///run/redis%20x.sock?db=4");
  EXPECT_EQ(endpoint.socket_path, "/run/redis x.sock");
  EXPECT_EQ(endpoint.database, 4);
  EXPECT_EQ(endpoint.address(), "unix:/run/redis x.sock");
  const auto with_user = parse_url("unix://u:p@s@/run/r.sock");
  EXPECT_EQ(with_user.username, "u");
  EXPECT_EQ(with_user.password, "p@s");
  EXPECT_EQ(with_user.socket_path, "/run/r.sock");
  EXPECT_EQ(parse_url("unix:///tmp/a@b.sock").socket_path, "/tmp/a@b.sock");
}

TEST(Url, TheAddressHasNoUserInfo) {
  EXPECT_EQ(parse_url("redis://user:secret@h:1").address(), "h:1");
}

class BadUrl : public testing::TestWithParam<const char*> {};

TEST_P(BadUrl, IsRefusedWithoutItsSecrets) {
  const auto text = refusal(GetParam());
  EXPECT_EQ(text.find("url: "), 0U) << text;
  EXPECT_EQ(text.find("s3cret"), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadUrl,
    testing::Values("", "localhost", "s3cret@localhost:6379", "redis://user:s3cret",
                    "redis://h/s3cret", "http://u:s3cret@h", "redis://", "redis://:s3cret@",
                    "redis:///1", "redis://u:s3cret%zz@h", "redis://u:s3cret%@h",
                    "redis://u:s3cret%4@h", "redis://u:s3cret@h:0", "redis://u:s3cret@h:65536",
                    "redis://u:s3cret@h:abc", "redis://u:s3cret@h:", "redis://u:s3cret@h:-1",
                    "redis://u:s3cret@h:+1", "redis://u:s3cret@h: 1", "redis://u:s3cret@h:1/x",
                    "redis://u:s3cret@h:1/-1", "redis://u:s3cret@h/1/2",
                    "redis://u:s3cret@h/99999999999999999999", "redis://u:s3cret@h?db=1",
                    "redis://u:s3cret@[::1", "redis://u:s3cret@[::1]x", "redis://u:s3cret@[h]",
                    "redis://u:s3cret@::1:6379", "redis://u:s3cret@h\n", "redis://u:s3cret@h h",
                    "unix://u:s3cret@relative", "unix://", "unix:///", "unix://u:s3cret@/p?x=1",
                    "unix://u:s3cret@/p?db=x", "unix://u:s3cret@/a%00b", "rediss://u:s3cret@h",
                    "redis+sentinel://u:s3cret@h/m", "redis+cluster://u:s3cret@h"));

TEST(Url, OverLongSocketPathsAreRefused) {
  EXPECT_EQ(parse_url("unix:///" + std::string(106, 'x')).socket_path.size(), 107U);
  EXPECT_NE(refusal("unix:///" + std::string(107, 'x')).find("longer than"), std::string::npos);
}

}  // namespace
