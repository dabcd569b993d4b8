// SPDX-License-Identifier: Apache-2.0
/* libssh.a calls GSSAPI, which Debian has only as a shared library that needs Kerberos. ivyrun logs
 * in with keys; if a site needs GSSAPI, the OpenSSH client takes over. These functions report that
 * GSSAPI is not available. The library's header is not needed: callers see only the status and
 * unchanged arguments, and extra arguments are harmless on every ABI that we build for. */

typedef unsigned int gss_status;

enum { kUnavailable = 16 << 16 }; /* GSS_S_UNAVAILABLE */

#define UNAVAILABLE(name)                    \
  gss_status name(gss_status* minor);        \
  gss_status name(gss_status* minor) {       \
    if (minor != (gss_status*)0) *minor = 0; \
    return kUnavailable;                     \
  }

UNAVAILABLE(gss_accept_sec_context)
UNAVAILABLE(gss_acquire_cred)
UNAVAILABLE(gss_add_oid_set_member)
UNAVAILABLE(gss_create_empty_oid_set)
UNAVAILABLE(gss_display_name)
UNAVAILABLE(gss_display_status)
UNAVAILABLE(gss_get_mic)
UNAVAILABLE(gss_import_name)
UNAVAILABLE(gss_indicate_mechs)
UNAVAILABLE(gss_init_sec_context)
UNAVAILABLE(gss_inquire_cred)
UNAVAILABLE(gss_inquire_cred_by_mech)
UNAVAILABLE(gss_release_buffer)
UNAVAILABLE(gss_release_cred)
UNAVAILABLE(gss_release_name)
UNAVAILABLE(gss_release_oid_set)
UNAVAILABLE(gss_test_oid_set_member)
UNAVAILABLE(gss_verify_mic)

/* Variables of the library that hold pointers to object identifiers. */
extern void* GSS_C_NT_HOSTBASED_SERVICE;
extern void* GSS_C_NT_USER_NAME;
void* GSS_C_NT_HOSTBASED_SERVICE = (void*)0;
void* GSS_C_NT_USER_NAME = (void*)0;
