{{/* The name of everything in this release; a proxy's pod is NAME-proxy-0, and so on. */}}
{{- define "pdserve.name" -}}
{{- if contains "pdserve" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-pdserve" (.Release.Name | trunc 32 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of one component: (list $ "proxy"). It may never change. */}}
{{- define "pdserve.selector" -}}
app.kubernetes.io/name: pdserve
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "pdserve.labels" -}}
{{- $root := index . 0 -}}
{{ include "pdserve.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/*
A table of the configuration file, from a list of settings of which a later one comes first.
TOML writes these values as JSON does. (Merging would lose what is set to false or 0.)
*/}}
{{- define "pdserve.table" -}}
{{- $all := dict -}}
{{- range . }}{{ range $name, $value := . }}{{ $_ := set $all $name $value }}{{ end }}{{ end -}}
{{- range $name, $value := $all }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{- define "pdserve.proxySettings" -}}
{{- $ours := dict "host" "0.0.0.0" "port" 8000 "discovery_host" "0.0.0.0" "discovery_port" 30001 -}}
{{- with .Values.secrets.apiKeys.name }}
{{- $_ := set $ours "api_key_file" "/etc/pdserve/keys/keys.toml" -}}
{{- end -}}
{{- with .Values.secrets.tls.name }}
{{- $_ := set $ours "ssl_certfile" "/etc/pdserve/tls/tls.crt" -}}
{{- $_ := set $ours "ssl_keyfile" "/etc/pdserve/tls/tls.key" -}}
{{- end -}}
{{- include "pdserve.table" (list $ours .Values.proxy.settings) -}}
{{- end -}}

{{- define "pdserve.nodeSettings" -}}
{{- $root := index . 0 -}}
{{- $own := (index $root.Values (index . 1)).settings -}}
{{- $proxies := list -}}
{{- range until (int $root.Values.proxy.replicas) -}}
{{- $name := include "pdserve.name" $root -}}
{{- $proxies = append $proxies (printf "%s-proxy-%d.%s-proxies:30001" $name . $name) -}}
{{- end -}}
{{- $ours := dict "model" (required "model: a folder or a name on the hub" $root.Values.model) -}}
{{- $_ := set $ours "host" "0.0.0.0" -}}
{{- $_ := set $ours "port" 8100 -}}
{{- $_ := set $ours "kv_port" 21001 -}}
{{- $_ := set $ours "proxy" $proxies -}}
{{- with $root.Values.servedModelNames }}{{ $_ := set $ours "served_model_name" . }}{{ end -}}
{{- include "pdserve.table" (list $ours $root.Values.nodeSettings $own) -}}
{{- end -}}

{{/* How long a pod has to end: (list SETTINGS DEFAULT), its wait for streams and 15 s more. */}}
{{- define "pdserve.graceSeconds" -}}
{{- $drain := index . 1 -}}
{{- $notice := 0 -}}
{{- range index . 0 }}
{{- if hasKey . "drain_timeout_s" }}{{ $drain = .drain_timeout_s }}{{ end }}
{{- if hasKey . "drain_notice_s" }}{{ $notice = .drain_notice_s }}{{ end }}
{{- end -}}
{{- add (ceil (addf $drain $notice)) 15 -}}
{{- end -}}

{{/* A container's variables, as JSON: (list $ "proxy"). */}}
{{- define "pdserve.environment" -}}
{{- $root := index . 0 -}}
{{- $ip := dict "fieldRef" (dict "fieldPath" "status.podIP") -}}
{{- $ours := list (dict "name" "POD_IP" "valueFrom" $ip) -}}
{{- with $root.Values.secrets.clusterKey }}
{{- if .name }}
{{- $secret := dict "secretKeyRef" (dict "name" .name "key" .key) -}}
{{- $ours = append $ours (dict "name" "PDSERVE_CLUSTER_KEY" "valueFrom" $secret) -}}
{{- end }}
{{- end }}
{{- concat $ours (index $root.Values (index . 1)).env | toJson -}}
{{- end -}}

{{/* What a pod of each component is told alike: (list $ "proxy"). */}}
{{- define "pdserve.pod" -}}
{{- $root := index . 0 -}}
{{- with index $root.Values (index . 1) -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "pdserve.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}
