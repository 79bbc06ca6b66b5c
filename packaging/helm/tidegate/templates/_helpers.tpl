{{- define "tidegate.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "tidegate.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "tidegate.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: {{ include "tidegate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidegate.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "tidegate.selector" . }}
{{- end -}}

{{- define "tidegate.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tidegate.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "tidegate.configSecret" -}}
{{- default (include "tidegate.fullname" .) .Values.existingSecret -}}
{{- end -}}

{{/* The configuration with what other values imply; keys of `config` take precedence. */}}
{{- define "tidegate.config" -}}
{{- $listen := dict "addresses" (list (printf "0.0.0.0:%d" (int .Values.port))) -}}
{{- if .Values.tls.secretName -}}
{{- $_ := set $listen "tls" "require" -}}
{{- $_ := set $listen "tls_cert" "/etc/tidegate-tls/tls.crt" -}}
{{- $_ := set $listen "tls_key" "/etc/tidegate-tls/tls.key" -}}
{{- if .Values.tls.clientCertificates -}}
{{- $_ := set $listen "tls_client_ca" "/etc/tidegate-tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- $shutdown := printf "%ds" (max 1 (sub (int .Values.terminationGracePeriodSeconds) 5)) -}}
{{- $delay := printf "%ds" (int .Values.shutdownDelaySeconds) -}}
{{- $implied := dict "listen" $listen "timeouts" (dict "shutdown" $shutdown "shutdown_delay" $delay) -}}
{{- if .Values.metrics.enabled -}}
{{- $_ := set $implied "metrics" (dict "addresses" (list (printf "0.0.0.0:%d" (int .Values.metrics.port)))) -}}
{{- end -}}
{{- /* Numbers of values are floats to Helm, and toToml writes them so: 40 would become 40.0. */ -}}
{{- regexReplaceAll "(?m)^([^\"=\n]+ = -?[0-9]+)\\.0$" (toToml (merge (deepCopy .Values.config) $implied)) "${1}" -}}
{{- end -}}

{{- define "tidegate.probe" -}}
{{- $root := index . 0 -}}
{{- if $root.Values.metrics.enabled -}}
httpGet:
  path: {{ index . 1 }}
  port: metrics
  scheme: {{ ternary "HTTPS" "HTTP" (hasKey (default dict $root.Values.config.metrics) "tls_cert") }}
{{- else -}}
exec:
  command: ["/usr/bin/tidegate", "healthcheck", "--address", "127.0.0.1:{{ $root.Values.port }}"]
{{- end -}}
{{- end -}}

{{- define "tidegate.pod" -}}
metadata:
  annotations:
    {{- if not .Values.existingSecret }}
    checksum/config: {{ include "tidegate.config" . | sha256sum }}
    {{- end }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  labels:
    {{- include "tidegate.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tidegate.serviceAccountName" . }}
  automountServiceAccountToken: false
  # Variables of services with this name would look like keys of the configuration.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  securityContext:
    {{- toYaml .Values.podSecurityContext | nindent 4 }}
  containers:
    - name: tidegate
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args: ["container"]
      ports:
        - name: postgres
          containerPort: {{ .Values.port }}
        {{- if .Values.metrics.enabled }}
        - name: metrics
          containerPort: {{ .Values.metrics.port }}
        {{- end }}
      {{- $ports := and .Values.existingSecret (not .Values.pgbouncerFiles) }}
      {{- if or $ports .Values.extraEnv }}
      env:
        {{- if $ports }}
        # The ports of this chart, whatever the file of the Secret has.
        - name: TIDEGATE_LISTEN_ADDRESSES
          value: "0.0.0.0:{{ .Values.port }}"
        {{- if .Values.metrics.enabled }}
        - name: TIDEGATE_METRICS_ADDRESSES
          value: "0.0.0.0:{{ .Values.metrics.port }}"
        {{- end }}
        {{- end }}
        {{- with .Values.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- end }}
      {{- with .Values.extraEnvFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      startupProbe:
        tcpSocket:
          port: postgres
        {{- toYaml .Values.startupProbe | nindent 8 }}
      livenessProbe:
        {{- include "tidegate.probe" (list . "/live") | nindent 8 }}
        {{- toYaml .Values.livenessProbe | nindent 8 }}
      readinessProbe:
        {{- include "tidegate.probe" (list . "/ready") | nindent 8 }}
        {{- toYaml .Values.readinessProbe | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      volumeMounts:
        - name: config
          mountPath: {{ ternary "/etc/pgbouncer" "/etc/tidegate" (and (ne .Values.existingSecret "") .Values.pgbouncerFiles) }}
          readOnly: true
        {{- if .Values.tls.secretName }}
        - name: tls
          mountPath: /etc/tidegate-tls
          readOnly: true
        {{- end }}
        {{- with .Values.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    - name: config
      secret:
        secretName: {{ include "tidegate.configSecret" . }}
        defaultMode: 0440
    {{- if .Values.tls.secretName }}
    - name: tls
      secret:
        secretName: {{ .Values.tls.secretName }}
        defaultMode: 0440
    {{- end }}
    {{- with .Values.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{- toYaml . | nindent 6 }}
      labelSelector:
        matchLabels:
          {{- include "tidegate.selector" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}
