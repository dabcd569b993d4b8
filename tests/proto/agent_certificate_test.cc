// SPDX-License-Identifier: Apache-2.0
#include "proto/trust/agent_certificate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/support/test_certificates.h"

namespace ivy {
namespace {

using test::kTestDay;
using test::TestAuthority;
using test::TestDirectory;

constexpr std::int64_t kNow = 1'790'000'000;  // 2026-09-21 14:13:20 UTC.

class AgentCertificateTest : public testing::Test {
 protected:
  std::string pem(const test::TestRequest& request) const {
    return authority_.issue(request).certificate_pem;
  }

  const TestAuthority authority_{"test CA", kNow};
  const KeyAndCertificate alice_ = authority_.user("alice");
  const KeyAndCertificate node1_ = authority_.host("node1", {"node1", "node1.lan"}, {"10.0.0.1"});
};

// Runs the openssl command.
bool run_openssl(const std::string& arguments) {
  return std::system(("openssl " + arguments + " >/dev/null 2>&1").c_str()) == 0;
}

bool has_openssl() { return std::system("openssl version >/dev/null 2>&1") == 0; }

TEST_F(AgentCertificateTest, IdentifiesAUserByTheCertificate) {
  const Result<CertificateIdentity> identity = verify_certificate(
      alice_.certificate_pem, authority_.anchor({}), CertificateRole::kUser, kNow);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->role, CertificateRole::kUser);
  EXPECT_EQ(identity->name, "alice");
  EXPECT_EQ(identity->serves, "");
  EXPECT_EQ(identity->not_before, kNow - kTestDay);
  EXPECT_EQ(identity->not_after, kNow + 30 * kTestDay);
  EXPECT_EQ(identity->serial.size(), 32U);
}

TEST_F(AgentCertificateTest, IdentifiesAHostByItsNamesAndUser) {
  const std::string host = pem({.uris = {"ivy://host/node1", "ivy://serves/alice"},
                                .dns_names = {"Node1.LAN", "node1"},
                                .addresses = {"10.0.0.1", "FE80::0:1"},
                                .usages = {"serverAuth"}});
  const Result<CertificateIdentity> identity =
      verify_certificate(host, authority_.anchor(), CertificateRole::kHost, kNow);
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->role, CertificateRole::kHost);
  EXPECT_EQ(identity->name, "node1");
  EXPECT_EQ(identity->serves, "alice");
  EXPECT_EQ(identity->dns_names, (std::vector<std::string>{"node1.lan", "node1"}));
  EXPECT_EQ(identity->addresses, (std::vector<std::string>{"10.0.0.1", "fe80::1"}));
}

TEST_F(AgentCertificateTest, AcceptsAChainWithTheCaAndTrailingGarbage) {
  const std::string chain =
      "\n" + alice_.certificate_pem + authority_.texts().certificate_pem + "\x01 garbage\n";
  const Result<CertificateIdentity> identity =
      verify_certificate(chain, authority_.anchor({}), CertificateRole::kUser, kNow);
  EXPECT_TRUE(identity.ok()) << identity.error().message;
}

TEST_F(AgentCertificateTest, TrustsTwoCasDuringARotation) {
  const TestAuthority next("test CA", kNow);  // The same name, as a careless user would choose.
  const KeyAndCertificate bob = next.user("bob");
  const KeyAndCertificate mallory = next.user("mallory");
  const TrustAnchor both{authority_.texts().certificate_pem + next.texts().certificate_pem,
                         authority_.revocation_list({}) + next.revocation_list({mallory})};
  EXPECT_TRUE(verify_certificate(alice_.certificate_pem, both, CertificateRole::kUser, kNow).ok());
  EXPECT_TRUE(verify_certificate(bob.certificate_pem, both, CertificateRole::kUser, kNow).ok());
  EXPECT_FALSE(
      verify_certificate(mallory.certificate_pem, both, CertificateRole::kUser, kNow).ok());
}

// Runs verification on certificates that must be rejected, each with the code and text of its
// error.
struct Rejection {
  std::string what;
  std::string chain;
  Code code;
  std::string words;
};

void expect_rejected(const std::vector<Rejection>& rejections, const TrustAnchor& anchor,
                     CertificateRole wanted) {
  for (const auto& [what, chain, code, words] : rejections) {
    const Result<CertificateIdentity> identity = verify_certificate(chain, anchor, wanted, kNow);
    ASSERT_FALSE(identity.ok()) << what;
    EXPECT_EQ(static_cast<int>(identity.error().code), static_cast<int>(code)) << what;
    EXPECT_NE(identity.error().message.find(words), std::string::npos)
        << what << ": " << identity.error().message;
    EXPECT_EQ(identity.error().message.find('\n'), std::string::npos) << what;
    EXPECT_LT(identity.error().message.size(), 600U) << what;
  }
}

TEST_F(AgentCertificateTest, RejectsAnExpiredOrFutureCertificateWithTheDate) {
  const std::vector<std::string> alice{"ivy://user/alice"};
  const std::vector<Rejection> rejections{
      {"expired", authority_.expired_user("alice").certificate_pem, Code::kUnauthenticated,
       "certificate user/alice (serial "},
      {"expired", authority_.expired_user("alice").certificate_pem, Code::kUnauthenticated,
       ") expired 10 days ago (2026-09-11)"},
      {"expired just now",
       pem({.uris = alice, .usages = {"clientAuth"}, .from = -kTestDay, .until = -1}),
       Code::kUnauthenticated, "expired a moment ago (2026-09-21 "},
      {"not yet", pem({.uris = alice, .usages = {"clientAuth"}, .from = 3600, .until = kTestDay}),
       Code::kUnauthenticated, "is not valid before 2026-09-21 "},
      {"not yet", pem({.uris = alice, .usages = {"clientAuth"}, .from = 3600, .until = kTestDay}),
       Code::kUnauthenticated, "check the clocks of both hosts"},
  };
  expect_rejected(rejections, authority_.anchor({}), CertificateRole::kUser);
}

TEST_F(AgentCertificateTest, RejectsACertificateOfAnotherCa) {
  const TestAuthority foreign("foreign CA", kNow);
  const TestAuthority namesake("test CA", kNow);
  // Uses a user's certificate as a CA. A leaf cannot sign, whatever it has signed.
  const CertificateRequest forged{.common_name = "forged",
                                  .uris = {"ivy://user/root"},
                                  .dns_names = {},
                                  .addresses = {},
                                  .extended_usages = {"clientAuth"},
                                  .not_before = kNow - kTestDay,
                                  .not_after = kNow + kTestDay};
  const Result<KeyAndCertificate> by_alice = issue_certificate(alice_, forged);
  ASSERT_TRUE(by_alice.ok()) << by_alice.error().message;
  std::string flipped = alice_.certificate_pem;
  char& bit = flipped[flipped.find("-----END") - 12];  // In the signature.
  bit = bit == 'A' ? 'B' : 'A';
  const std::vector<Rejection> rejections{
      {"foreign", foreign.user("alice").certificate_pem, Code::kUnauthenticated,
       "is not signed by this CA (its issuer is CN=foreign CA)"},
      {"foreign with its CA",
       foreign.user("alice").certificate_pem + foreign.texts().certificate_pem,
       Code::kUnauthenticated, "is not signed by this CA"},
      {"foreign with both CAs",
       foreign.user("alice").certificate_pem + foreign.texts().certificate_pem +
           authority_.texts().certificate_pem,
       Code::kUnauthenticated, "is not signed by this CA"},
      {"of a namesake of the CA", namesake.user("alice").certificate_pem, Code::kUnauthenticated,
       "is not signed by this CA"},
      {"foreign and expired", foreign.expired_user("alice").certificate_pem, Code::kUnauthenticated,
       "is not signed by this CA"},
      {"signed by a user", by_alice->certificate_pem + alice_.certificate_pem,
       Code::kUnauthenticated, "certificate user/root (serial "},
      {"signed by a user, alone", by_alice->certificate_pem, Code::kUnauthenticated,
       "is not signed by this CA"},
      {"changed on the way", flipped, Code::kUnauthenticated, "certificate"},
  };
  expect_rejected(rejections, authority_.anchor({}), CertificateRole::kUser);
}

TEST_F(AgentCertificateTest, RejectsACertificateWithoutAUniqueRole) {
  const std::vector<std::string> client{"clientAuth"};
  const std::string alice = "ivy://user/alice";
  const std::vector<Rejection> rejections{
      {"a host", node1_.certificate_pem, Code::kPermissionDenied,
       "certificate host/node1 (serial "},
      {"a host", node1_.certificate_pem, Code::kPermissionDenied,
       "is a host's certificate: it cannot launch jobs"},
      {"no role", pem({.uris = {}, .usages = client}), Code::kPermissionDenied, "it has no role"},
      {"no role, a name", pem({.uris = {}, .dns_names = {"alice"}, .usages = client}),
       Code::kPermissionDenied, "it has no role"},
      {"another scheme", pem({.uris = {"spiffe://user/alice"}, .usages = client}),
       Code::kPermissionDenied, "it has no role"},
      {"unknown role", pem({.uris = {"ivy://root/alice"}, .usages = client}),
       Code::kPermissionDenied, "unknown role \"ivy://root/alice\""},
      {"role in capitals", pem({.uris = {"IVY://USER/alice", alice}, .usages = client}),
       Code::kPermissionDenied, "unknown role"},
      {"both", pem({.uris = {alice, "ivy://host/node1"}, .usages = {"clientAuth", "serverAuth"}}),
       Code::kPermissionDenied, "more than one role"},
      {"two users", pem({.uris = {alice, "ivy://user/bob"}, .usages = client}),
       Code::kPermissionDenied, "more than one role"},
      {"twice the same", pem({.uris = {alice, alice}, .usages = client}), Code::kPermissionDenied,
       "more than one role"},
      {"a user that serves", pem({.uris = {alice, "ivy://serves/alice"}, .usages = client}),
       Code::kPermissionDenied, "a user's certificate cannot serve"},
      {"usage of a host", pem({.uris = {alice}, .usages = {"serverAuth"}}), Code::kPermissionDenied,
       "does not match its role of user"},
      {"both usages", pem({.uris = {alice}, .usages = {"clientAuth", "serverAuth"}}),
       Code::kPermissionDenied, "does not match its role of user"},
      {"any usage", pem({.uris = {alice}, .usages = {"clientAuth", "anyExtendedKeyUsage"}}),
       Code::kPermissionDenied, "does not match its role of user"},
      {"no usage", pem({.uris = {alice}}), Code::kPermissionDenied,
       "does not match its role of user"},
      {"empty name", pem({.uris = {"ivy://user/"}, .usages = client}), Code::kPermissionDenied,
       "cannot be the name of a user"},
      {"a path as name", pem({.uris = {"ivy://user/../root"}, .usages = client}),
       Code::kPermissionDenied, "cannot be the name of a user"},
      {"a zero byte", pem({.uris = {std::string("ivy://user/root\0.x", 18)}, .usages = client}),
       Code::kPermissionDenied, "cannot be the name of a user"},
      {"a new line", pem({.uris = {"ivy://user/a\nb"}, .usages = client}), Code::kPermissionDenied,
       "\"a?b\" cannot be the name of a user"},
      {"the CA itself", authority_.texts().certificate_pem, Code::kPermissionDenied,
       "it has no role"},
  };
  expect_rejected(rejections, authority_.anchor({}), CertificateRole::kUser);
}

TEST_F(AgentCertificateTest, RejectsAUsersCertificateForServing) {
  expect_rejected({{"a user", alice_.certificate_pem, Code::kPermissionDenied,
                    "is a user's certificate: it cannot serve"},
                   {"two users served",
                    pem({.uris = {"ivy://host/n", "ivy://serves/a", "ivy://serves/b"},
                         .usages = {"serverAuth"}}),
                    Code::kPermissionDenied, "more than one role"},
                   {"usage of a user", pem({.uris = {"ivy://host/n"}, .usages = {"clientAuth"}}),
                    Code::kPermissionDenied, "does not match its role of host"}},
                  authority_.anchor({}), CertificateRole::kHost);
}

TEST_F(AgentCertificateTest, RejectsTextsThatAreNotCertificates) {
  const std::string begin = "-----BEGIN CERTIFICATE-----\n";
  const std::string end = "-----END CERTIFICATE-----\n";
  std::string many;
  for (int i = 0; i < 9; ++i) many += alice_.certificate_pem;
  const std::vector<Rejection> rejections{
      {"empty", "", Code::kUnauthenticated, "is empty"},
      {"blank", " \n\t\n", Code::kUnauthenticated, "is empty"},
      {"garbage", std::string("\0\x01\xff garbage", 11), Code::kUnauthenticated, "is not PEM text"},
      {"a key", alice_.key_pem, Code::kUnauthenticated, "is not PEM text"},
      {"nothing in the block", begin + end, Code::kUnauthenticated, "is damaged"},
      {"no DER in the block", begin + "Z2FyYmFnZSBnYXJiYWdl\n" + end, Code::kUnauthenticated,
       "is damaged"},
      {"no base64", begin + "!!!!\n" + end, Code::kUnauthenticated, "is damaged"},
      {"cut", alice_.certificate_pem.substr(0, 300), Code::kUnauthenticated, "is truncated"},
      {"text before", "alice:\n" + alice_.certificate_pem, Code::kUnauthenticated,
       "unexpected text before"},
      {"text between", alice_.certificate_pem + "x\n" + alice_.certificate_pem,
       Code::kUnauthenticated, "unexpected text before"},
      {"a damaged second one", alice_.certificate_pem + begin + end, Code::kUnauthenticated,
       "is damaged"},
      {"nine", many, Code::kUnauthenticated, "more than 8"},
      {"huge", alice_.certificate_pem + std::string(kMaxCertificateBytes, ' '),
       Code::kUnauthenticated, "longer than 64 KiB"},
  };
  expect_rejected(rejections, authority_.anchor({}), CertificateRole::kUser);
}

TEST_F(AgentCertificateTest, RejectsEveryTruncatedCertificate) {
  const TrustAnchor anchor = authority_.anchor();
  const std::size_t whole = alice_.certificate_pem.size() - 1;  // Without the final newline.
  for (std::size_t size = 0; size < whole; size += 7) {
    const Result<CertificateIdentity> identity = verify_certificate(
        alice_.certificate_pem.substr(0, size), anchor, CertificateRole::kUser, kNow);
    ASSERT_FALSE(identity.ok()) << size;
  }
}

TEST_F(AgentCertificateTest, RejectsOnlyTheRevokedCertificate) {
  const KeyAndCertificate other = authority_.user("alice");
  const TrustAnchor anchor = authority_.anchor({alice_, node1_});
  expect_rejected(
      {{"revoked", alice_.certificate_pem, Code::kPermissionDenied, "has been revoked"}}, anchor,
      CertificateRole::kUser);
  expect_rejected(
      {{"revoked", node1_.certificate_pem, Code::kPermissionDenied, "has been revoked"}}, anchor,
      CertificateRole::kHost);
  EXPECT_TRUE(verify_certificate(other.certificate_pem, anchor, CertificateRole::kUser, kNow).ok());
}

TEST_F(AgentCertificateTest, RejectsAllCertificatesIfTheTrustAnchorIsInvalid) {
  const TestAuthority foreign("foreign CA", kNow);
  const TestAuthority namesake("test CA", kNow);
  const std::string ca = authority_.texts().certificate_pem;
  const std::string empty_list = authority_.revocation_list({});
  const struct {
    const char* what;
    TrustAnchor anchor;
    const char* words;
  } cases[] = {
      {"no CA", {"", ""}, "the CA is empty"},
      {"a list as CA", {empty_list, ""}, "the CA is not PEM text"},
      {"a key as CA", {authority_.texts().key_pem, ""}, "the CA is not PEM text"},
      {"foreign list", {ca, foreign.revocation_list({})}, "is not signed by the CA"},
      {"a namesake's list", {ca, namesake.revocation_list({})}, "is not signed by the CA"},
      {"a foreign list after ours",
       {ca, empty_list + foreign.revocation_list({})},
       "the revocation list of CN=foreign CA is not signed by the CA"},
      {"a certificate as list", {ca, ca}, "the revocation list is not PEM text"},
      {"damaged list", {ca, "-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n"}, "is damaged"},
      {"cut list", {ca, empty_list.substr(0, 200)}, "is truncated"},
      {"huge list", {ca, empty_list + std::string(kMaxRevocationBytes, '\n')}, "longer than 1 MiB"},
      {"no list of this CA",
       {ca + foreign.texts().certificate_pem, foreign.revocation_list({})},
       "there are revocation lists, but none for its CA"},
  };
  for (const auto& [what, anchor, words] : cases) {
    const Result<CertificateIdentity> identity =
        verify_certificate(alice_.certificate_pem, anchor, CertificateRole::kUser, kNow);
    ASSERT_FALSE(identity.ok()) << what;
    EXPECT_EQ(static_cast<int>(identity.error().code), static_cast<int>(Code::kFailedPrecondition))
        << what;
    EXPECT_NE(identity.error().message.find(words), std::string::npos)
        << what << ": " << identity.error().message;
  }
}

TEST_F(AgentCertificateTest, NamesAnExpiredCa) {
  const Result<CertificateIdentity> identity = verify_certificate(
      authority_
          .issue({.uris = {"ivy://user/alice"}, .usages = {"clientAuth"}, .until = 800 * kTestDay})
          .certificate_pem,
      authority_.anchor(), CertificateRole::kUser, kNow + 500 * kTestDay);
  ASSERT_FALSE(identity.ok());
  EXPECT_NE(identity.error().message.find("its CA certificate CN=test CA"), std::string::npos)
      << identity.error().message;
  EXPECT_NE(identity.error().message.find("expired 100 days ago"), std::string::npos);
}

TEST_F(AgentCertificateTest, RejectsSelfSignedCertificates) {
  if (!has_openssl()) GTEST_SKIP() << "the openssl command is not installed";
  const TestDirectory directory;
  const std::string names =
      " -nodes -days 30 -subj /CN=alice -addext subjectAltName=URI:ivy://user/alice"
      " -addext extendedKeyUsage=clientAuth -addext basicConstraints=critical,CA:FALSE"
      " -keyout " +
      (directory / "x.key") + " -out ";
  ASSERT_TRUE(run_openssl("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256" + names +
                          (directory / "ec.crt")));
  ASSERT_TRUE(run_openssl("req -x509 -newkey rsa:2048" + names + (directory / "rsa.crt")));
  for (const char* file : {"ec.crt", "rsa.crt"}) {
    const Result<CertificateIdentity> identity = verify_certificate(
        directory.read(file), authority_.anchor({}), CertificateRole::kUser, std::time(nullptr));
    ASSERT_FALSE(identity.ok()) << file;
    EXPECT_EQ(static_cast<int>(identity.error().code), static_cast<int>(Code::kUnauthenticated));
    EXPECT_NE(identity.error().message.find("user/alice"), std::string::npos);
    EXPECT_NE(identity.error().message.find("is not signed by this CA"), std::string::npos)
        << identity.error().message;
  }
}

TEST_F(AgentCertificateTest, AgreesWithOpenssl) {
  if (!has_openssl()) GTEST_SKIP() << "the openssl command is not installed";
  const TestAuthority authority;  // Valid now, because the command uses the real clock.
  const KeyAndCertificate host = authority.host("node1", {"node1"}, {"::1"});
  const KeyAndCertificate user = authority.user("alice");
  const TestDirectory directory;
  const std::string ca = directory.write("ca.crt", authority.texts().certificate_pem);
  const std::string list = directory.write("ca.crl", authority.revocation_list({user}));
  const std::string host_file = directory.write("host.crt", host.certificate_pem);
  const std::string user_file = directory.write("user.crt", user.certificate_pem);
  const std::string verify = "verify -x509_strict -CAfile " + ca + " -CRLfile " + list;
  EXPECT_TRUE(run_openssl(verify + " -crl_check -purpose sslserver -verify_ip ::1 " + host_file));
  EXPECT_TRUE(run_openssl(verify + " -purpose sslclient " + user_file));
  EXPECT_FALSE(run_openssl(verify + " -purpose sslclient " + host_file));
  EXPECT_FALSE(run_openssl(verify + " -crl_check -purpose sslclient " + user_file));
  EXPECT_TRUE(run_openssl("crl -noout -verify -CAfile " + ca + " -in " + list));
}

TEST_F(AgentCertificateTest, MatchesAHostOnlyByItsOwnNames) {
  CertificateIdentity identity;
  identity.role = CertificateRole::kHost;
  identity.name = "node1";
  identity.dns_names = {"node1", "node1.lan", "a.b.c"};
  identity.addresses = {"10.0.0.1", "2001:db8::1", "fe80::1"};
  const struct {
    const char* asked;
    bool known;
  } cases[] = {
      {"node1", true},
      {"NODE1", true},
      {"Node1.Lan", true},
      {"node1.lan.", true},
      {"10.0.0.1", true},
      {"::ffff:10.0.0.1", true},
      {"2001:0DB8:0::0:1", true},
      {"[2001:db8::1]", true},
      {"fe80::1%eth0", true},
      {"[fe80::1%3]", true},
      {"", false},
      {".", false},
      {"node", false},
      {"node11", false},
      {"node1.lan.evil", false},
      {"*.lan", false},
      {"x.node1", false},
      {"b.c", false},
      {"10.0.0.2", false},
      {"10.0.0.01", false},
      {"10.1", false},
      {"10.0.0.1%eth0", false},
      {"2001:db8::2", false},
      {"[10.0.0.1", false},
  };
  for (const auto& [asked, known] : cases)
    EXPECT_EQ(check_host_name(identity, asked).ok(), known) << asked;
  const Result<void> rejected = check_host_name(identity, "node2");
  ASSERT_FALSE(rejected.ok());
  EXPECT_EQ(static_cast<int>(rejected.error().code), static_cast<int>(Code::kPermissionDenied));
  EXPECT_EQ(rejected.error().message,
            "certificate host/node1 is not for \"node2\"; its names: node1, node1.lan, a.b.c, "
            "10.0.0.1, 2001:db8::1, fe80::1");
}

TEST_F(AgentCertificateTest, IgnoresWildcardNames) {
  const Result<CertificateIdentity> identity = read_certificate(pem(
      {.uris = {"ivy://host/node1"}, .dns_names = {"*.lan", "ok.lan"}, .usages = {"serverAuth"}}));
  ASSERT_TRUE(identity.ok()) << identity.error().message;
  EXPECT_EQ(identity->dns_names, std::vector<std::string>{"ok.lan"});
  EXPECT_FALSE(check_host_name(*identity, "node1.lan").ok());
}

TEST_F(AgentCertificateTest, ReadsACertificateWithoutVerifyingIt) {
  const TestAuthority foreign("foreign CA", kNow);
  const Result<CertificateIdentity> read =
      read_certificate(foreign.expired_host("node9").certificate_pem);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->name, "node9");
  const Result<CertificateIdentity> none = read_certificate(authority_.texts().certificate_pem);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(static_cast<int>(none.error().code), static_cast<int>(Code::kInvalidArgument));
  EXPECT_NE(none.error().message.find("certificate CN=test CA (serial "), std::string::npos);
}

TEST_F(AgentCertificateTest, AcceptsOnlySafeNames) {
  const struct {
    CertificateRole role;
    std::string name;
    bool fits;
  } cases[] = {
      {CertificateRole::kUser, "alice", true},
      {CertificateRole::kUser, "_apt", true},
      {CertificateRole::kUser, "a.b-c_D9", true},
      {CertificateRole::kUser, std::string(32, 'a'), true},
      {CertificateRole::kUser, std::string(33, 'a'), false},
      {CertificateRole::kUser, "", false},
      {CertificateRole::kUser, "9lives", false},
      {CertificateRole::kUser, "-x", false},
      {CertificateRole::kUser, ".x", false},
      {CertificateRole::kUser, "a:b", false},
      {CertificateRole::kUser, "a/b", false},
      {CertificateRole::kUser, "a b", false},
      {CertificateRole::kUser, "a\tb", false},
      {CertificateRole::kUser, "a\n", false},
      {CertificateRole::kUser, "\xc3\xa9va", false},
      {CertificateRole::kHost, "node1.lan", true},
      {CertificateRole::kHost, "10.0.0.1", true},
      {CertificateRole::kHost, "::1", true},
      {CertificateRole::kHost, "2001:db8::1", true},
      {CertificateRole::kHost, std::string(253, 'a'), true},
      {CertificateRole::kHost, std::string(254, 'a'), false},
      {CertificateRole::kHost, "..", false},
      {CertificateRole::kHost, ".", false},
      {CertificateRole::kHost, "a..b", false},
      {CertificateRole::kHost, "-oProxyCommand", false},
      {CertificateRole::kHost, "a/../b", false},
      {CertificateRole::kHost, "a%25", false},
      {CertificateRole::kHost, "a?b#c", false},
  };
  for (const auto& [role, name, fits] : cases)
    EXPECT_EQ(check_certificate_name(role, name).ok(), fits) << name;
}

TEST(ExpiryWarningTest, ReportsTheRemainingTimeAndTheDate) {
  constexpr std::int64_t kHour = 3600;
  const struct {
    std::int64_t left;
    std::string text;
  } cases[] = {
      {15 * kTestDay, ""},
      {14 * kTestDay + 1, ""},
      {14 * kTestDay, "expires in 14 days (2026-10-05)"},
      {3 * kTestDay + 5, "expires in 3 days (2026-09-24)"},
      {47 * kHour, "expires in 47 hours (2026-09-23 13:13 UTC)"},
      {90 * 60, "expires in 90 minutes (2026-09-21 15:43 UTC)"},
      {60, "expires in a moment (2026-09-21 14:14 UTC)"},
      {0, "expires in a moment (2026-09-21 14:13 UTC)"},
      {-60, "expired a moment ago (2026-09-21 14:12 UTC)"},
      {-2 * kHour, "expired 2 hours ago (2026-09-21 12:13 UTC)"},
      {-400 * kTestDay, "expired 400 days ago (2025-08-17)"},
  };
  for (const auto& [left, text] : cases) EXPECT_EQ(expiry_warning(kNow + left, kNow), text) << left;
  EXPECT_EQ(expiry_warning(kNow + 20 * kTestDay, kNow, 30), "expires in 20 days (2026-10-11)");
}

}  // namespace
}  // namespace ivy
